# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is decided on the controller from what is wanted and what is there."""

from __future__ import annotations

import copy
import hashlib
import types
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.specdec.serving.plugins.module_utils import (
    arguments,
    findings,
    locks,
    plans,
    plantexts,
    pythons,
    wheelhouses,
    wheelsources,
)
from ansible_collections.specdec.serving.plugins.module_utils.findings import Finding, FindingError

DATA = Path(plans.__file__).parent / "data"
TABLES = {name: yaml.safe_load((DATA / (name + ".yml")).read_text()) for name in ("stacks", "engines", "architectures", "speculation")}
DIGEST = "00112233445566ff"

#: A bare Debian 12 without a GPU, as gathered.
BARE: dict[str, t.Any] = {
    "schema": 1,
    "os": {"system": "Linux", "name": "Debian GNU/Linux 12 (bookworm)", "machine": "x86_64", "glibc": "2.36"},
    "systemd": {"running": True, "version": 252, "container": None},
    "disk": {"path": "/opt", "free": 100 * 10**9, "total": 200 * 10**9},
    "gpus": {"source": "none", "driver": None, "devices": []},
    "pythons": [
        {"path": "/usr/bin/python3.11", "version": "3.11.2", "implementation": "cpython", "build": "3.11.2 (main)", "headers": False}
    ],
    "tools": {"specdec": None, "uv": None},
    "wheels": [],
    "overlays": [],
    "models": [],
    "environments": {},
    "instances": {},
    "secrets": {},
    "listeners": {"30000": []},
    "job": None,
}

INSTANCE: dict[str, t.Any] = {
    "name": "main",
    "engine": {"name": "sglang", "version": "0.5.23", "lane": "cpu"},
    "model": {"path": "/srv/target"},
    "draft": {"path": "/srv/draft"},
    "speculative": {"algorithm": "NGRAM", "num_draft_tokens": 5},
}


class Pins:
    """A pins directory in memory."""

    def __init__(self, overlay: bool = False, base: str = "0.5.23") -> None:
        self.locks: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        self.wheels: dict[str, dict[str, t.Any]] = {}
        self.overlay = overlay
        self.damaged = False
        self.base = {"name": "sglang", "version": base}

    def lock(self, name: str) -> t.Optional[str]:
        return self.locks.get(name)

    def reference(self, host: str) -> dict[str, t.Any]:
        packages = {"packages": self.packages} if self.packages else {}
        return {"overlays": {"sglang": DIGEST}, **packages} if self.overlay else packages

    def wheel(self, key: str) -> t.Optional[dict[str, t.Any]]:
        return self.wheels.get(key)

    def wheel_file(self, record: t.Mapping[str, t.Any]) -> Path:
        return Path(__file__).with_name("proving.py")

    def manifest(self, digest: str) -> t.Optional[dict[str, t.Any]]:
        files = [{"path": "sglang/spec.py", "base": "b" * 64, "result": "c" * 64}]
        return {"digest": digest, "base": self.base, "files": files}

    def bundle(self, digest: str) -> Path:
        return Path(__file__).parent / "journals"

    def verify(self, digest: str) -> None:
        if self.damaged:
            raise FindingError(Finding("overlay.digest", "error", digest, "1 file(s) are not as the manifest lists them", fix="restore it"))


class Layers:
    """Makes bundles of directories that are not there; notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[t.Any, ...]] = []

    def __call__(self, directory: str, *rest: t.Any) -> tuple[dict[str, t.Any], Path]:
        self.asked.append((directory, *rest))
        if directory == "/nowhere":
            raise FindingError(Finding("overlay.layer", "error", directory, "is no directory", fix="make it"))
        files = [{"path": "sglang/spec.py", "base": "c" * 64, "result": "d" * 64}]
        base = {**rest[0], "version": "0.5.12"} if directory == "/bundle" else rest[0]
        return {"digest": "layer" + directory[-1], "base": base, "files": files}, Path(__file__).parent / "journals"

    def record(self, base: t.Mapping[str, str], hashes: t.Sequence[str], python: str) -> dict[str, t.Any]:
        assert (base, hashes, python) == ({"name": "sglang", "version": "0.5.23"}, ("0" * 64,), "3.11")
        return {"sglang/other.py": None}


def lock_for(inputs: t.Mapping[str, t.Any]) -> str:
    versions = {"sglang": "0.5.23", "torch": inputs["torch"].split("==")[-1]}
    if "flashinfer" not in inputs["lacks"]:
        versions.update({"flashinfer-python": inputs["flashinfer"], **dict([inputs["kernel"]])})
    elif "+" not in versions["torch"]:
        versions["torch"] += "+cpu"
    packages = tuple(locks.Package(name, version, ("0" * 64,)) for name, version in sorted(versions.items()))
    return locks.Lock(packages, locks.identity(inputs)).text()


def plan(
    state: t.Optional[t.Mapping[str, t.Any]] = None,
    pins: t.Optional[Pins] = None,
    lock: bool = True,
    layers: t.Optional[Layers] = None,
    python: t.Any = "",
    wheelhouse: str = "",
    hub: str = "https://hub.example",
    named: t.Optional[dict[str, t.Any]] = None,
    cache: Path = Path(),
    beside: t.Sequence[t.Mapping[str, t.Any]] = (),
    origins: t.Optional[dict[str, str]] = None,
    **instance: t.Any,
) -> dict[str, t.Any]:
    """:param named: specdec_pins; :param cache: of the controller; :param beside: what other instances have of their own.
    :param origins: of the instance's options, the variables that say them.
    """
    pins = pins or Pins()
    wanted = plans.Wanted(
        host="ct200",
        address="192.0.2.200",
        root="/opt/specdec",
        pins_dir="/pins",
        instances=[{**INSTANCE, **instance}, *({**INSTANCE, **instance, **one} for one in beside)],
        pins=named or {},
        extra_packages=[],
        wheel_directories=[],
        wheelhouse=wheelhouse,
        archives=wheelhouse,
        exclude_newer="",
        pins_update=[],
        hub=hub,
        tools={"specdec": {"path": "/c/specdec", "digest": "d1"}, "uv": {"path": "/c/uv", "digest": "d2"}},
        launcher="# launcher\n",
        who="me@here",
        why="",
        python=pythons.wanted(python),
        cache=cache,
        origins={"main": origins or {}},
    )
    made = plans.Planner(wanted, state or BARE, TABLES, pins, layers or Layers()).plan()
    if lock and any(pin["kind"] == "lock" for pin in made["missing_pins"]):
        for pin in made["missing_pins"]:
            if pin["kind"] == "lock":
                pins.locks[pin["name"]] = lock_for(pin["inputs"])
        made = plans.Planner(wanted, state or BARE, TABLES, pins, layers or Layers()).plan()
    return made


def changed(**parts: t.Any) -> dict[str, t.Any]:
    state = copy.deepcopy(BARE)
    for name, value in parts.items():
        state[name] = {**state[name], **value} if isinstance(state[name], dict) and value is not None else value
    return state


def errors(made: t.Mapping[str, t.Any]) -> list[dict[str, str]]:
    return [one for one in made["findings"] if one["verdict"] == "error"]


def test_a_bare_host_gets_everything() -> None:
    made = plan()
    assert errors(made) == []
    assert made["missing_pins"] == []
    assert made["stages"] == ["uv", "engine_env", "verify", "engine_service"]
    (environment,), (release,) = made["environments"], made["releases"]
    assert not environment["present"]
    assert release["environment"] == environment["id"] == release["files"]["facts"]["environment"]
    assert release["switch"]["release"] == release["id"]
    assert "GPUs: none" in plantexts.changes(made)[0]


def test_missing_pins_are_named_and_nothing_is_planned_from_them() -> None:
    made = plan(lock=False, overlays=[{"reference": "ct129"}])
    assert [(pin["kind"], pin.get("reference")) for pin in made["missing_pins"]] == [("overlay", "ct129"), ("lock", None)]
    assert made["environments"] == made["releases"] == []


def test_the_same_wants_give_the_same_ids_on_another_host() -> None:
    other = changed(disk={"free": 50 * 10**9})
    assert plan()["releases"][0]["id"] == plan(other)["releases"][0]["id"]
    assert plan()["environments"][0]["id"] != plan(pins=Pins(True), overlays=[{"reference": "ct129"}])["environments"][0]["id"]


def test_directories_are_laid_over_a_captured_overlay_in_order() -> None:
    layers = Layers()
    overlays = [{"reference": "ct129"}, {"directory": "/patches/1"}, {"directory": "/patches/2", "binaries": ["sglang/x.so"]}]
    made = plan(pins=Pins(True), layers=layers, overlays=overlays)
    assert errors(made) == []
    first, second = layers.asked[-2:]
    base = {"name": "sglang", "version": "0.5.23"}
    assert first[:4] == ("/patches/1", base, ("0" * 64,), "3.11")
    assert [manifest["digest"] for manifest in first[4]] == [DIGEST]
    assert [manifest["digest"] for manifest in second[4]] == [DIGEST, "layer1"]
    assert (list(first[5]), list(second[5])) == ([], ["sglang/x.so"])
    environment = made["environments"][0]
    assert environment["job"]["environment"]["overlays"] == [DIGEST, "layer1", "layer2"]
    assert [one["dest"].rpartition("/")[2] for one in made["artifacts"]["overlays"]] == [DIGEST, "layer1", "layer2"]
    said = "\n".join(plantexts.changes(made))
    assert "overlay layer1 on sglang, directory /patches/1" in said
    assert "sglang/spec.py: overlay layer1 replaces what %s left: cccccccccccc → dddddddddddd" % DIGEST in said
    assert "sglang/spec.py: overlay layer2 replaces what layer1 left" in said


def test_a_directory_that_cannot_be_laid_is_refused_before_anything() -> None:
    made = plan(overlays=[{"directory": "/nowhere"}])
    assert [one["id"] for one in errors(made)] == ["overlay.layer"]
    assert made["environments"] == []
    assert [one["message"] for one in errors(plan(overlays=[{"directory": "/patches/1", "package": "absent"}]))] == ["is not in the lock"]


def test_an_overlay_for_another_engine_version_is_refused_before_anything_is_built() -> None:
    made = plan(pins=Pins(True, base="0.5.12"), overlays=[{"reference": "ct129"}])
    (finding,) = errors(made)
    assert (finding["id"], finding["found"], finding["expected"]) == ("overlay.base-version", "sglang 0.5.23", "sglang 0.5.12")
    assert finding["evidence"] == "sglang/spec.py: is gone"
    assert made["environments"] == []
    assert [one["id"] for one in errors(plan(overlays=[{"directory": "/bundle"}]))] == ["overlay.base-version"]


def test_a_bundle_that_the_pins_have_lost_is_named_before_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = Pins(overlay=True)
    monkeypatch.setattr(pins, "manifest", lambda _digest: None)
    made = plan(pins=pins, overlays=[{"reference": "ct129"}])
    (finding,) = errors(made)
    assert (finding["id"], finding["subject"]) == ("plan.bundle-gone", "overlay %s of ct129 on ct200" % DIGEST)
    assert str(pins.bundle(DIGEST)) in finding["found"] and "restore the pins directory" in finding["fix"]
    assert (made["environments"], made["releases"]) == ([], [])


def test_a_bundle_that_was_edited_by_hand_is_refused_before_it_is_sent() -> None:
    pins = Pins(overlay=True)
    pins.damaged = True
    wanted = {"overlays": [{"reference": "ct129"}]}
    made = plan(pins=pins, **wanted)
    assert [one["id"] for one in made["findings"] if one["verdict"] == "error"] == ["overlay.digest"]
    assert (made["artifacts"]["overlays"], made["environments"], made["releases"]) == ([], [], [])
    assert plan(changed(overlays=[DIGEST]), pins=pins, **wanted)["releases"]  # the host has it whole


def test_files_that_another_bundle_on_the_host_holds_do_not_travel() -> None:
    wanted = {"overlays": [{"reference": "ct129"}]}
    (sent,) = plan(changed(overlays=["another"]), pins=Pins(overlay=True), **wanted)["artifacts"]["overlays"]
    assert sent["held"] == {"files/sglang/spec.py": "/opt/specdec/cache/overlays/another/files/sglang/spec.py"}
    (sent,) = plan(pins=Pins(overlay=True), **wanted)["artifacts"]["overlays"]
    assert sent["held"] == {}


def test_a_host_where_it_all_serves_has_no_stage() -> None:
    made = plan()
    release, environment = made["releases"][0], made["environments"][0]
    serving = {
        "current": release["id"],
        "running": release["id"],
        "release": release["files"]["facts"],
        "releases": [release["id"]],
        "proven": [release["id"]],
        "unit": {"ActiveState": "active"},
        "unit_as_released": True,
        "unfinished": None,
        "health": 200,
    }
    state = changed(tools={"specdec": "d1", "uv": "d2"}, environments={environment["id"]: {}}, instances={"main": serving})
    again = plan(state)
    assert again["stages"] == []
    assert plantexts.changes(again)[1:] == ["nothing to do"]
    for broken in (
        {"running": "another"},
        {"unit": {"ActiveState": "failed"}},
        {"unit_as_released": False},
        {"unfinished": {"step": "stopped"}},
    ):
        state["instances"]["main"] = {**serving, **broken}
        assert plan(state)["stages"] == ["engine_service"], broken


@pytest.mark.parametrize(
    ("state", "id_", "said", "way_out"),
    [
        (changed(systemd={"running": False}), "plan.no-systemd", "the host on ct200", "runs systemd"),
        (changed(os={"glibc": "2.31"}), "stack.glibc", "glibc", "2.34"),
        (changed(os={"machine": "riscv64"}), "stack.architecture", "riscv64", "processors"),
        (changed(pythons=[]), "stack.python", "Python", "Install Python"),
        (changed(disk={"free": 10**9}), "plan.disk", "specdec_root (/opt/specdec) on ct200", "set specdec_root"),
        (changed(job={"description": "specdec: switch of main for somebody"}), "plan.busy", "switch of main for somebody", "wait until"),
        (
            changed(listeners={"30000": [{"pid": 7, "command": "nginx", "cgroup": "/system.slice/nginx.service"}]}),
            "plan.port",
            "port 30000 belongs to process 7 (nginx)",
            "choose another port",
        ),
    ],
    ids=["systemd", "glibc", "machine", "python", "disk", "busy", "port"],
)
def test_a_host_that_cannot_serve_is_refused_by_name_with_a_way_out(state: dict[str, t.Any], id_: str, said: str, way_out: str) -> None:
    (finding,) = errors(plan(state))
    assert finding["id"] == id_
    assert said in " ".join(finding.values())
    assert "ct200" in finding["subject"]
    assert way_out in finding["fix"]


def test_its_own_listener_is_no_stranger() -> None:
    own = {"pid": 8, "command": "python", "cgroup": "/system.slice/specdec-main.service"}
    assert errors(plan(changed(listeners={"30000": [own]}))) == []


def test_a_value_tells_where_it_comes_from() -> None:
    made = plan(extra_args={"dtype": "float32", "attention_backend": "triton"})
    origins = {value["name"]: value["origin"] for value in made["settings"]}
    assert origins["dtype"] == "extra_args"
    assert origins["attention-backend"] == "extra_args"
    assert origins["device"] == "lane cpu"
    assert origins["port"] == "default"
    assert origins["speculative-algorithm"] == "instance"
    assert made["releases"][0]["files"]["config"]["attention-backend"] == "triton"


def test_a_value_tells_which_variable_it_was_written_in() -> None:
    everywhere = "specdec_instance_defaults"
    origins = {"speculative.algorithm": everywhere, "speculative.num_draft_tokens": "specdec_host_defaults", "port": "instance"}
    made = plan(origins={**origins, "extra_args.dtype": everywhere}, port=30001, extra_args={"dtype": "float32"})
    told = {value["name"]: value["origin"] for value in made["settings"]}
    assert told["speculative-algorithm"] == everywhere
    assert told["speculative-num-draft-tokens"] == "specdec_host_defaults"
    assert (told["port"], told["dtype"]) == ("instance", "extra_args of specdec_instance_defaults")
    assert (told["device"], told["enable-metrics"]) == ("lane cpu", "collection")


def test_a_key_is_in_no_part_of_the_plan() -> None:
    key = "k-0123456789abcdef-secret"
    made = plan(api_key=key)
    assert key not in repr(made)
    secret = made["releases"][0]["files"]["facts"]["secrets"]["api_key"]
    assert secret["option"] == "api-key"
    known = plan(changed(secrets={"main": {"api_key": "feedface"}}), api_key=key)
    assert known["releases"][0]["files"]["facts"]["secrets"]["api_key"]["version"] == "feedface"


def test_a_model_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    (finding,) = errors(plan(model={"directory": str(tmp_path)}))
    assert (finding["id"], finding["subject"]) == ("plan.model-directory", "specdec_instances[main].model.directory on ct200")
    assert "config.json" in finding["found"]


GPU_ENGINE = {"engine": {"name": "sglang", "version": "0.5.10.post1", "lane": "auto"}}


def with_gpus(*verdicts: str, subject: str = "GPU 1") -> dict[str, t.Any]:
    """A host with two GPUs, and findings about them."""
    devices = [
        {"index": index, "uuid": "GPU-%d" % index, "name": name, "compute_capability": "9.0", "mig": None}
        for index, name in enumerate(["NVIDIA H200", None])
    ]
    found = [findings.Finding("gpu.fault", verdict, subject, "is in error", fix="reset it").as_dict() for verdict in verdicts]
    return changed(gpus={"source": "nvml", "driver": "570.124.06", "devices": devices, "findings": found})


@pytest.mark.parametrize(
    ("instance", "verdict"),
    [
        ({}, "warning"),
        (GPU_ENGINE, "error"),
        ({**GPU_ENGINE, "gpus": "all"}, "error"),
        ({**GPU_ENGINE, "gpus": [1]}, "error"),
        ({**GPU_ENGINE, "gpus": ["GPU-1"]}, "error"),
        ({**GPU_ENGINE, "gpus": [0]}, "warning"),
        ({**GPU_ENGINE, "gpus": "none"}, "warning"),
    ],
)
def test_a_gpu_in_error_forbids_only_its_use(instance: dict[str, t.Any], verdict: str) -> None:
    made = plan(with_gpus("ok", "error"), lock=False, **instance)
    assert [(one["id"], one["verdict"]) for one in made["findings"]] == [("gpu.fault", verdict)]
    assert verdict + ": GPU 1: is in error" in plantexts.changes(made)


CUDA_ENGINE = {"engine": {"name": "sglang", "version": "0.5.23", "lane": "auto"}}


def two_gpus() -> dict[str, t.Any]:
    """A host with two GPUs that are as they should be, the second divided."""
    parts = [{"uuid": "MIG-%s" % name, "name": name, "memory": None} for name in ("a", "b")]
    devices = [
        {"index": index, "uuid": "GPU-%d" % index, "name": "NVIDIA H200", "compute_capability": "9.0", "mig": mig, "unified": False}
        for index, mig in enumerate([None, {"enabled": True, "devices": parts}])
    ]
    return {"source": "nvml", "driver": "580.95.05", "devices": devices, "findings": []}


@pytest.mark.parametrize(
    ("gpus", "visible"), [([0], "GPU-0"), (["0", "MIG-b"], "GPU-0,MIG-b"), (["GPU-1"], "GPU-1"), ("all", None), (None, None)]
)
def test_the_service_gets_its_gpus_by_uuid(gpus: t.Any, visible: t.Optional[str]) -> None:
    made = plan({**BARE, "memory": {}, "gpus": two_gpus()}, **CUDA_ENGINE, gpus=gpus)
    assert made["releases"][0]["files"]["facts"]["environment_variables"].get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ([0], [1], None),
        ([0], ["GPU-0"], "has GPUs in common with instance main"),
        ([0], "all", "has GPUs in common with instance main"),
        (None, [1], "has GPUs in common with instance main"),
        (["MIG-a"], ["MIG-b"], None),
        (["MIG-a"], ["GPU-1"], "has GPUs in common with instance main"),
        ("none", "all", None),
        ([0], [2], "names GPUs that are not there"),
    ],
)
def test_instances_share_no_gpu(one: t.Any, other: t.Any, said: t.Optional[str]) -> None:
    made = plan(
        {**BARE, "memory": {}, "gpus": two_gpus()}, **CUDA_ENGINE, gpus=one, beside=[{"name": "other", "port": 30001, "gpus": other}]
    )
    told = [(finding["id"], finding["subject"], finding["message"]) for finding in errors(made) if finding["id"] == "plan.gpus"]
    assert told == ([("plan.gpus", "specdec_instances[other].gpus on ct200", said)] if said else [])


def test_what_the_environment_owes_to_the_host() -> None:
    def variables(**state: t.Any) -> dict[str, str]:
        return plan({**BARE, **state})["releases"][0]["files"]["facts"]["environment_variables"]

    gib = 1024**3
    assert variables(memory={"total": 20 * gib}, cpus=16)["MAX_JOBS"] == "2"
    assert variables(memory={"total": 2 * gib}, cpus=16)["MAX_JOBS"] == "1"
    assert variables(memory={"total": 2000 * gib}, cpus=16)["MAX_JOBS"] == "16"
    assert "TMPDIR" not in variables(temporary={"path": "/tmp", "executable": True})
    hardened = variables(temporary={"path": "/tmp", "executable": False})
    assert hardened["TMPDIR"] == hardened["HOME"] + "/tmp"


@pytest.mark.parametrize(
    ("version", "how"),
    [("0.5.9", ("mixed", "always", "SIGKILL")), ("0.5.18", ("mixed", "always", "SIGKILL")), ("0.5.19", ("mixed", "on-failure", None))],
)
def test_how_the_unit_ends_the_engine_follows_its_version(version: str, how: tuple[t.Optional[str], ...]) -> None:
    rows = TABLES["engines"]["sglang"]["service"]
    row = arguments.row(rows, version)
    assert row is not None and (row["kill_mode"], row["restart"], row["success_exit_status"] or None) == how


def test_the_plan_says_which_limits_this_host_does_not_enforce() -> None:
    limited = {"service": {"memory_max": "64G"}}
    made = plan(changed(systemd={**BARE["systemd"], "controllers": ["memory"]}), **limited)
    assert "  limits: TasksMax=32768 (not enforced here: no controller pids), MemoryMax=64G" in plantexts.changes(made)


def test_what_keeps_the_whole_host_from_its_gpus_is_told_first() -> None:
    state = with_gpus("error", subject="the GPUs")
    state["gpus"]["driver"] = None
    made = plan(state, lock=False, **GPU_ENGINE)
    assert [one["id"] for one in errors(made)] == ["gpu.fault", "stack.driver"]
    assert [one["verdict"] for one in plan(state, lock=False)["findings"]] == ["warning"]


def test_the_hardware_is_told_also_where_a_gpu_has_no_name() -> None:
    assert plan(with_gpus())["hardware"].endswith("GPUs: 1 x NVIDIA H200, 1 x GPU without a name")


def test_ngram_only_warns_about_a_low_acceptance() -> None:
    assert plan()["releases"][0]["files"]["facts"]["gate"]["floor_enforced"] is False
    assert plan(speculative={"algorithm": "EAGLE3"})["releases"][0]["files"]["facts"]["gate"]["floor_enforced"] is True
    assert plan(speculative=None, draft=None)["releases"][0]["files"]["facts"]["gate"]["speculative"] is False


def test_models_of_a_hub_are_fetched_once_with_the_environment_that_serves_them() -> None:
    named = {"repo": "org/target", "revision": "a" * 40}
    made = plan(model=named, draft=named)
    assert errors(made) == [] and "model_store" in made["stages"]
    (fetch,) = made["fetches"]
    assert {key: fetch["job"][key] for key in ("kind", "repo", "revision", "endpoint")} == {
        "kind": "fetch",
        **named,
        "endpoint": "https://hub.example",
    }
    assert fetch["job"]["python"] == "/opt/specdec/environments/%s/venv/bin/python" % made["environments"][0]["id"]
    assert made["releases"][0]["files"]["facts"]["models"] == ["/opt/specdec/models/org--target/" + "a" * 40] * 2
    assert "fetch org/target at %s from the hub" % ("a" * 40) in plantexts.changes(made)
    there = plan(changed(models=["org--target/" + "a" * 40]), model=named)
    assert there["fetches"] == [] and "model_store" not in there["stages"]


def test_a_build_tells_its_packages_against_what_serves_and_what_it_downloads() -> None:
    pins = Pins()
    first = plan(pins=pins)
    packages = first["environments"][0]["job"]["environment"]["packages"]
    assert packages["sglang"] == "0.5.23" and sorted(packages) == ["sglang", "torch"]
    assert [(one["name"], one["old"]) for one in first["environments"][0]["changes"]] == [("sglang", None), ("torch", None)]
    assert "  download: 2 package(s) of unknown size" in plantexts.changes(first)
    serving = {"packages": {"sglang": "0.5.22", "torch": packages["torch"]}}
    release = {"environment": "before", "id": "r1", "start_timeout": 1, "stop_timeout": 1, "gate": {"timeout": 1}}
    instances = {"main": {"current": "r1", "running": "r1", "release": release, "unit": {}, "unit_as_released": True, "unfinished": None}}
    name = next(iter(pins.locks))
    lock = locks.parse(pins.locks[name])
    pins.locks[name] = locks.Lock(lock.packages, lock.inputs, lock.wheels, {"sglang": 7_000_000, "torch": 200_000_000}).text()
    made = plan(changed(environments={"before": serving}, instances=instances), pins)
    assert made["environments"][0]["id"] == first["environments"][0]["id"]
    lines = plantexts.changes(made)
    assert "  packages: 1 changed against environment before: sglang 0.5.22 → 0.5.23" in lines
    assert "  download: 7.0 MB (sglang 7.0 MB)" in lines
    assert plantexts.package_changes(made) == ["%s: sglang 0.5.22 → 0.5.23, 7.0 MB" % made["environments"][0]["id"]]


def test_without_a_version_the_overlays_base_is_what_is_deployed() -> None:
    engine, overlays_ = {"name": "sglang", "lane": "cpu"}, [{"reference": "ct129"}]
    done = plan(pins=Pins(overlay=True, base="0.5.21"), lock=False, engine=engine, overlays=overlays_)
    assert [(pin["kind"], pin["inputs"]["version"]) for pin in done["missing_pins"]] == [("lock", "0.5.21")]


def test_while_the_overlay_is_not_captured_nothing_else_is_locked() -> None:
    engine, overlays_ = {"name": "sglang", "lane": "cpu"}, [{"reference": "ct129"}]
    done = plan(pins=Pins(), lock=False, engine=engine, overlays=overlays_)
    assert [pin["kind"] for pin in done["missing_pins"]] == ["overlay"]


@pytest.mark.parametrize(("adds", "refused"), [([], ["stack.algorithm"]), (["DDTREE"], [])])
def test_an_algorithm_of_an_overlay_is_known_by_its_manifest(adds: list[str], refused: list[str]) -> None:
    class Adding(Pins):
        def manifest(self, digest: str) -> t.Optional[dict[str, t.Any]]:
            return {**(super().manifest(digest) or {}), "adds": {"algorithms": adds, "arguments": []}}

    wanted = {"algorithm": "DDTREE", "num_draft_tokens": 16}
    done = plan(pins=Adding(overlay=True), speculative=wanted, overlays=[{"reference": "ct129"}])
    assert [one["id"] for one in done["findings"] if one["verdict"] == "error"] == refused


def test_the_stack_is_for_the_gpus_that_the_instance_uses() -> None:
    cards = [("0", "12.0"), ("1", "7.0")]
    devices = [
        {"index": int(index), "uuid": "GPU-" + index, "name": "card " + index, "compute_capability": capability, "mig": None}
        for index, capability in cards
    ]
    gpus = {"source": "nvml", "driver": "580.95.05", "devices": devices, "findings": []}
    engine = {"name": "sglang", "version": "0.5.23", "lane": "auto"}
    ids = {
        use: [one["id"] for one in plan({**BARE, "gpus": gpus}, lock=False, engine=engine, gpus=list(use))["findings"]]
        for use in ("0", "1")
    }
    assert ids == {"0": [], "1": ["stack.capability", "stack.kernel-code"]}


def test_a_python_that_is_to_be_installed_comes_first_and_is_said() -> None:
    managed = {"source": "managed", "version": "3.12"}
    made = plan(python=managed, lock=False)
    assert errors(made) == []
    assert {pin["kind"] for pin in made["missing_pins"]} == {"python", "lock"} and made["environments"] == []
    (job,) = [pin["job"] for pin in made["missing_pins"] if pin["kind"] == "python"]
    assert (job["kind"], job["source"], job["version"], job["root"]) == ("python", "managed", "3.12", "/opt/specdec")
    (lock,) = [pin["inputs"] for pin in made["missing_pins"] if pin["kind"] == "lock"]
    assert lock["python"] == "3.12"
    said = "could not check: Python is not installed yet; would install managed Python 3.12 below /opt/specdec/python, then look again"
    assert said in plantexts.changes(made)

    path = "/opt/specdec/python/managed-3.12-00/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12"
    there = {"path": path, "version": "3.12.4", "implementation": "cpython", "build": "3.12.4 (main)", "headers": True, "source": "managed"}
    made = plan(changed(pythons=[*BARE["pythons"], there]), python=managed)
    assert [one["job"]["python"] for one in made["environments"]] == [path] and made["missing_pins"] == []
    (job,) = [one["job"] for one in plan(changed(pythons=[*BARE["pythons"], there]))["environments"]]
    assert job["python"] == "/usr/bin/python3.11", "without the variable only the system's Pythons count"


def test_a_python_that_is_not_there_is_named_once() -> None:
    (one,) = errors(plan(python="3.12", lock=False))
    assert (one["id"], one["subject"], one["found"]) == ("python.absent", "specdec_python on ct200", "3.11.2")
    assert "source: managed, version: '3.12'" in one["fix"]
    (one,) = errors(plan(python={"source": "prefix", "prefix": "/opt/python"}, lock=False))
    assert (one["id"], one["subject"]) == ("python.prefix", "specdec_python.prefix on ct200")
    (one,) = errors(plan(python={"source": "wheelhouse", "version": "3.12"}, lock=False))
    assert (one["id"], one["found"]) == ("python.wheelhouse", "no specdec_wheelhouse")


def in_wheelhouse(directory: Path, pins: Pins) -> dict[str, Path]:
    """A wheelhouse of the lock in the pins; its files by package."""
    (name,) = pins.locks
    lock = locks.parse(pins.locks[name])
    content = {one.name: ("content of " + one.name).encode() for one in lock.packages}
    hashes = {one: hashlib.sha256(data).hexdigest() for one, data in content.items()}
    packages = tuple(locks.Package(one.name, one.version, (hashes[one.name],)) for one in lock.packages)
    lock = locks.Lock(packages, lock.inputs)
    pins.locks[name] = lock.text()
    records = [
        {
            "name": one.name,
            "version": one.version,
            "filename": one.name + ".whl",
            "sha256": hashes[one.name],
            "bytes": len(content[one.name]),
        }
        for one in packages
    ]
    places = {one["name"]: wheelhouses.place(directory, one) for one in records}
    for one, path in places.items():
        path.parent.mkdir(parents=True)
        path.write_bytes(content[one])
    manifest = {**wheelhouses.empty(), "locks": {lock.id: {"name": name, "files": records}}}
    (directory / wheelhouses.MANIFEST).write_text(wheelhouses.text(manifest))
    return places


def test_with_a_wheelhouse_every_file_is_sent_and_the_build_is_offline_with_the_same_id(tmp_path: Path) -> None:
    pins = Pins()
    plan(pins=pins)
    places = in_wheelhouse(tmp_path, pins)
    online = plan(pins=pins)["environments"][0]
    made = plan(pins=pins, wheelhouse=str(tmp_path))
    (environment,) = made["environments"]
    assert environment["id"] == online["id"]
    assert (environment["job"]["uv_env"], environment["job"]["pages"]) == ({"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}, [])
    assert [one["filename"] for one in environment["job"]["wheels"]] == ["sglang.whl", "torch.whl"]
    assert {one["source"] for one in made["artifacts"]["wheels"]} == {str(path) for path in places.values()}
    assert "  download: nothing; 33 B of the wheelhouse are sent" in plantexts.changes(made)
    held = [path.parent.name for path in places.values()]
    assert plan(changed(wheels=held), pins, wheelhouse=str(tmp_path))["artifacts"]["wheels"] == []


@pytest.mark.parametrize(
    ("damage", "id_"),
    [
        (lambda places: places["torch"].write_bytes(b"content of torcH"), "wheelhouse.damaged"),
        (lambda places: places["torch"].unlink(), "wheelhouse.incomplete"),
        (lambda places: (places["torch"].parents[2] / wheelhouses.MANIFEST).unlink(), "wheelhouse.none"),
        (lambda places: (places["torch"].parents[2] / wheelhouses.MANIFEST).write_text("{}"), "wheelhouse.edited"),
    ],
    ids=["damaged", "gone", "no manifest", "edited"],
)
def test_a_wheelhouse_that_cannot_do_is_refused_before_anything(
    tmp_path: Path, damage: t.Callable[[dict[str, Path]], t.Any], id_: str
) -> None:
    pins = Pins()
    plan(pins=pins)
    damage(in_wheelhouse(tmp_path, pins))
    assert [one["id"] for one in errors(plan(pins=pins, wheelhouse=str(tmp_path)))] == [id_]


def test_with_a_wheelhouse_nothing_is_left_to_a_network(tmp_path: Path) -> None:
    made = plan(lock=False, wheelhouse=str(tmp_path))
    assert [one["id"] for one in errors(made)] == ["wheelhouse.no-lock"]
    pins = Pins()
    plan(pins=pins)
    in_wheelhouse(tmp_path, pins)
    model = {"repo": "org/name", "revision": "abc"}
    refused = errors(plan(pins=pins, wheelhouse=str(tmp_path), hub="", model=model))
    assert [(one["id"], one["subject"]) for one in refused] == [("wheelhouse.model", "model org--name/abc")]
    assert errors(plan(pins=pins, wheelhouse=str(tmp_path), model=model)) == []  # from the mirror that specdec_hub names


GIT = {"git": "https://git.example/x.git", "commit": "1" * 40, "build_host": "ct201"}


def test_a_wheel_that_a_pin_names_is_made_before_the_lock() -> None:
    made = plan(named={"tiny-kernel": GIT})
    [pin] = made["missing_pins"]
    assert (pin["kind"], pin["package"], pin["python"], pin["root"], pin["replace"]) == (
        "wheel",
        "tiny-kernel",
        "3.11",
        "/opt/specdec",
        False,
    )
    assert "pins lack the wheel of tiny-kernel: https://git.example/x.git at 111111111111, built on ct201" in plantexts.changes(made)
    assert made["environments"] == []


def test_a_wheel_by_address_is_fetched_only_where_somebody_needs_it(tmp_path: Path) -> None:
    pin = {"url": "https://host.example/tiny_kernel-1.0-cp311-cp311-linux_x86_64.whl", "sha256": "d" * 64}
    named, pins = {"tiny-kernel": pin}, Pins()
    assert [one["kind"] for one in plan(pins=pins, lock=False, named=named)["missing_pins"]] == ["wheel"], "to lock it has to be there"
    place = wheelsources.downloaded(tmp_path, pin)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"wheel")
    pin["sha256"] = hashlib.sha256(b"wheel").hexdigest()
    place.parent.rename(tmp_path / "wheels" / pin["sha256"])
    [lock] = plan(pins=pins, lock=False, named=named, cache=tmp_path)["missing_pins"]
    record = {"name": "tiny-kernel", "version": "1.0", "filename": place.name, "sha256": pin["sha256"]}
    sglang, torch = locks.parse(lock_for(lock["inputs"])).packages
    packages = (sglang, locks.Package("tiny-kernel", "1.0", (pin["sha256"],)), torch)
    pins.locks[lock["name"]] = locks.Lock(packages, locks.identity(lock["inputs"]), (record,)).text()
    there = plan(pins=pins, lock=False, named=named, cache=tmp_path)
    assert there["missing_pins"] == []
    assert [one["source"] for one in there["artifacts"]["wheels"]] == [str(tmp_path / "wheels" / pin["sha256"] / place.name)]

    # on another controller, which has the pins and not the wheel
    assert [one["kind"] for one in plan(pins=pins, lock=False, named=named)["missing_pins"]] == ["wheel"]
    held = plan(changed(wheels=[pin["sha256"]]), pins, lock=False, named=named)
    assert (held["missing_pins"], held["artifacts"]["wheels"], errors(held)) == ([], [], [])
    built = {there["environments"][0]["id"]: {}}
    assert plan(changed(environments=built), pins, lock=False, named=named)["missing_pins"] == []


def test_a_built_wheel_is_a_local_wheel_of_the_lock() -> None:
    pins = Pins()
    key = wheelsources.build_key(GIT, "3.11", "x86_64")
    pins.wheels[key] = {
        "filename": "tiny_kernel-1.0-cp311-cp311-linux_x86_64.whl",
        "sha256": "c" * 64,
        "glibc": "2.36",
        "built_on": "ct201",
    }
    [lock] = plan(pins=pins, lock=False, named={"tiny-kernel": GIT})["missing_pins"]
    assert (lock["kind"], lock["variable"]) == ("lock", "specdec_instances[main].engine")
    assert "tiny-kernel==1.0" in lock["inputs"]["overrides"]
    assert lock["inputs"]["sources"] == {"tiny-kernel": {"filename": "tiny_kernel-1.0-cp311-cp311-linux_x86_64.whl", "sha256": "c" * 64}}
    assert lock["wheel_directories"] == [str(Path(__file__).parent)]


def test_an_index_of_its_own_is_for_its_package_alone() -> None:
    [lock] = plan(lock=False, named={"some": {"version": "1.2", "index": "https://wheels.example/simple"}})["missing_pins"]
    assert "some==1.2" in lock["inputs"]["overrides"]
    named = {"name": "specdec_pins.some", "url": "https://wheels.example/simple", "packages": ["some"]}
    assert named in lock["inputs"]["indexes"]


def test_a_source_for_a_name_of_several_packages_is_refused() -> None:
    made = plan(lock=False, named={"flashinfer": {"version": "0.6.5", "index": "https://wheels.example/simple"}})
    [one] = errors(made)
    assert (one["id"], one["subject"]) == ("plan.pin-parts", "specdec_pins.flashinfer on ct200")
    assert one["expected"] == "flashinfer-python, flashinfer-cubin, flashinfer-jit-cache"


def test_versions_of_a_reference() -> None:
    pins = Pins()
    pins.packages = {"sglang": "0.5.12", "torch": "2.11.0+cpu", "transformers": "5.6.0"}
    engine = {"name": "sglang", "lane": "cpu", "lock_from": "ct129"}
    [lock] = plan(pins=pins, lock=False, engine=engine)["missing_pins"]
    assert lock["inputs"]["version"] == "0.5.12"
    assert "transformers==5.6.0" in lock["inputs"]["overrides"]
    refused = plan(pins=pins, lock=False, engine={**engine, "version": "0.5.23"})
    assert [one["id"] for one in refused["findings"] if one["verdict"] == "error"] == ["lock.from"]
    assert refused["findings"][0]["subject"] == "ct200: specdec_instances[main].engine.version"


def test_a_reference_that_is_about_to_be_captured_is_waited_for() -> None:
    engine = {"name": "sglang", "lane": "cpu", "lock_from": "ct129"}
    waiting = plan(lock=False, engine=engine, overlays=[{"reference": "ct129"}])
    assert [one["kind"] for one in waiting["missing_pins"]] == ["overlay"]
    assert [one for one in waiting["findings"] if one["verdict"] == "error"] == []
    unknown = plan(lock=False, engine=engine)
    assert [one["message"] for one in unknown["findings"] if one["verdict"] == "error"] == ["nothing is known of this reference"]


def test_instances_of_one_stack_share_a_lock() -> None:
    wanted = {"kind": "lock", "name": "x", "inputs": {}}
    planner = plans.Planner.__new__(plans.Planner)
    planner.missing, planner.wanted = [], types.SimpleNamespace(pins_dir="/pins")
    for variable in ("specdec_instances[one].engine", "specdec_instances[two].engine"):
        planner._miss({**wanted, "variable": variable})
    assert len(planner.missing) == 1


def test_a_key_that_the_engine_does_not_know_is_refused() -> None:
    keys = {"api_key": "k" * 16, "admin_api_key": "a" * 16}
    made = plan(engine={"name": "vllm", "version": "0.24.0", "lane": "cpu"}, **keys)
    told = [one for one in errors(made) if "specdec_instances[main].admin_api_key on ct200" in one["subject"]]
    assert [one["id"] for one in told] == ["plan.secret"]
    assert set(plan(**keys)["releases"][0]["files"]["facts"]["secrets"]) == set(keys)


def test_a_unit_made_by_hand_is_taken_over_before_its_upgrade() -> None:
    listens = [{"pid": 7, "command": "python", "cgroup": "/system.slice/sglang.service"}]
    state = {**BARE, "listeners": {"30000": listens}}
    assert [one["id"] for one in errors(plan(state=state))] == ["plan.port"]
    made = plan(state=state, adopt={"unit": "sglang.service"}, service={"start_timeout": 100, "stop_timeout": 10})
    assert errors(made) == [] and "adopt" in made["stages"]
    (adoption,), (release,) = made["adoptions"], made["releases"]
    assert (adoption["unit"], release["current"]) == ("sglang.service", adoption["id"])
    # stop 10, start 100, gate 300; and back to what was made by hand: stop 10, start 100, gate 300
    assert release["switch"]["deadline"] == 820
    assert "take over sglang.service as release %s of main, without a restart" % adoption["id"] in plantexts.changes(made)


def test_what_has_a_release_already_is_not_taken_over_again() -> None:
    there = {"current": "abc", "running": None, "unit": {}, "unit_as_released": True, "unfinished": None, "release": None}
    made = plan(state={**BARE, "instances": {"main": there}}, adopt={"unit": "sglang.service"})
    assert made["adoptions"] == [] and "adopt" not in made["stages"]


def test_an_instance_that_left_the_inventory_is_told_and_left_alone() -> None:
    there = {"unit": {"ActiveState": "active"}, "release": {"port": 30001}}
    pins = Pins()
    made = plan(state={**BARE, "instances": {"old": there}}, pins=pins)
    assert made["gone"] == [{"instance": "old", "state": "active", "port": 30001}]
    assert "instance old is on the host (active on port 30001) and not in the inventory: left alone" in plantexts.changes(made)[-1]
    assert "specdec_remove_instance=old" in plantexts.changes(made)[-1]
    assert made["releases"][0]["instance"] == "main"


def test_a_python_of_the_wheelhouse_is_sent_and_never_downloaded(tmp_path: Path) -> None:
    content = b"an archive"
    row = {"name": "cpython", "url": "https://example/cpython.tar.gz", "sha256": hashlib.sha256(content).hexdigest()}
    record = {"filename": "cpython.tar.gz", "sha256": row["sha256"], "bytes": len(content), "version": "3.12.4", "machine": "x86_64"}
    record.update(key="cpython-3.12.4", row=row)
    path = wheelhouses.place(tmp_path, record, wheelhouses.PYTHON)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (tmp_path / wheelhouses.MANIFEST).write_text(wheelhouses.text({**wheelhouses.empty(), "python": [record]}))
    asked = {"source": "wheelhouse", "version": "3.12"}
    made = plan(python=asked, lock=False, wheelhouse=str(tmp_path))
    (pin,) = [one for one in made["missing_pins"] if one["kind"] == "python"]
    assert [(one["source"], one["dest"], one["digest"]) for one in pin["artifacts"]] == [(str(path), pin["job"]["archive"], row["sha256"])]
    assert pin["job"]["rows"] == {"cpython-3.12.4": row}
    path.write_bytes(b"an archivE")
    assert "wheelhouse.damaged" in [one["id"] for one in errors(plan(python=asked, lock=False, wheelhouse=str(tmp_path)))]
    managed = errors(plan(python={**asked, "source": "managed"}, lock=False, wheelhouse=str(tmp_path)))
    assert "wheelhouse.interpreter" in [one["id"] for one in managed]


@pytest.mark.parametrize(
    ("share", "verdicts"), [({}, ["warning"]), ({"mem_fraction_static": 0.6}, []), ({"mem-fraction-static": 0.9}, ["error"])]
)
def test_a_share_of_unified_memory_is_compared_with_what_is_free(share: dict[str, float], verdicts: list[str]) -> None:
    device = {"index": 0, "uuid": "GPU-0", "name": "NVIDIA GB10", "compute_capability": "12.1", "mig": None, "unified": True}
    gpus = {"source": "nvml", "driver": "580.95.05", "devices": [device], "findings": []}
    system = {**BARE["os"], "machine": "aarch64"}
    state = {**BARE, "os": system, "gpus": gpus, "memory": {"total": 120 * 10**9, "available": 80 * 10**9}}
    made = plan(state, engine={"name": "sglang", "version": "0.5.23", "lane": "auto"}, extra_args=share)
    assert [one["verdict"] for one in made["findings"] if one["id"] == "gpu.unified-share"] == verdicts


# What the GPUs decide


#: Two RTX PRO 6000 on different sockets.
PRO_6000: dict[str, t.Any] = {
    "source": "nvml",
    "driver": "580.95.05",
    "devices": [
        {
            "index": number,
            "uuid": "GPU-%d" % number,
            "bus_id": "0000:0%d:00.0" % number,
            "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "compute_capability": "12.0",
            "memory": 102641958912,
            "mig": None,
            "nvlinks": 0,
            "iommu": None,
            "unified": False,
            "processes": [],
            "error": None,
        }
        for number in range(2)
    ],
    "topology": {"paths": [[None, "SYS"], ["SYS", None]], "p2p": [[None, "ok"], ["ok", None]], "reason": None},
    "toolkits": [{"path": "/usr/local/cuda-13.0", "names": ["/usr/local/cuda"], "version": "13.0"}],
}


def on_gpus(model_files: t.Optional[dict[str, t.Any]] = None, **instance: t.Any) -> dict[str, t.Any]:
    """A plan for SGLang on two RTX PRO 6000, without speculation."""
    known = {"config": {"model_type": "qwen3"}, "problem": "", "quantization": None, "weights": None, "tokenizer": None}
    state = changed(gpus=PRO_6000)
    state["memory"] = {"total": 512 * 10**9, "available": 400 * 10**9}
    state["model_files"] = {"/srv/target": known} if model_files is None else model_files
    state["pythons"][0]["headers"] = True
    wanted = {"engine": {"name": "sglang", "version": "0.5.23", "lane": "cu130"}, "draft": None, "speculative": None, **instance}
    return plan(state, **wanted)


def settings(made: t.Mapping[str, t.Any]) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["value"], one["origin"]) for one in made["settings"]}


def test_what_a_kind_of_gpu_needs_is_set_and_shown_with_its_reason() -> None:
    made = on_gpus(tensor_parallel=2)
    assert errors(made) == []
    shown = settings(made)
    assert shown["attention-backend"][0] == "flashinfer" and "FlashAttention 3" in shown["attention-backend"][1]
    assert shown["environment.NCCL_P2P_LEVEL"][0] == "SYS" and "host bridges" in shown["environment.NCCL_P2P_LEVEL"][1]
    facts = made["releases"][0]["files"]["facts"]
    assert facts["environment_variables"]["NCCL_P2P_LEVEL"] == "SYS"
    assert made["releases"][0]["files"]["config"]["attention-backend"] == "flashinfer"


def test_what_the_user_says_of_a_gpu_is_kept() -> None:
    made = on_gpus(tensor_parallel=2, extra_args={"attention-backend": "triton"}, environment={"NCCL_P2P_LEVEL": "PHB"})
    shown = settings(made)
    assert shown["attention-backend"] == ("triton", "extra_args") and "environment.NCCL_P2P_LEVEL" not in shown
    assert made["releases"][0]["files"]["facts"]["environment_variables"]["NCCL_P2P_LEVEL"] == "PHB"


def test_an_argument_that_fails_on_the_gpu_is_refused_where_it_is_written() -> None:
    [one] = errors(on_gpus(extra_args={"attention-backend": "fa3"}))
    assert one["id"] == "architecture.attention-backend"
    assert one["subject"] == "ct200: specdec_instances[main].extra_args.attention-backend"


def test_on_the_lane_cpu_gpus_decide_nothing() -> None:
    state = changed(gpus=PRO_6000)
    made = plan(state, gpus="all", extra_args={"attention-backend": "fa3"})
    assert errors(made) == [] and not [one for one in made["findings"] if one["id"].startswith("architecture.")]


def test_a_model_that_is_not_there_yet_is_told_and_lets_pass() -> None:
    made = on_gpus({}, model={"repo": "org/target", "revision": "0" * 40}, tensor_parallel=2)
    assert [(one["id"], one["verdict"]) for one in made["findings"]] == [("architecture.unread", "could not check")]


def model_files(**model: t.Any) -> dict[str, t.Any]:
    """What was read of /srv/target."""
    read = {"config": {"model_type": "qwen3"}, "problem": "", "quantization": None, "weights": None, "tokenizer": "a", "against": None}
    return {"/srv/target": {**read, **model}}


def refused(made: t.Mapping[str, t.Any]) -> tuple[str, str, str]:
    [one] = errors(made)
    return one["id"], one["subject"], one["found"]


def test_a_directory_that_is_no_model_is_refused() -> None:
    subject = "ct200: specdec_instances[main].model"
    assert refused(on_gpus({})) == ("plan.model-directory", subject, "no directory /srv/target")
    broken = model_files(config=None, problem="config.json: No such file or directory")
    assert refused(on_gpus(broken)) == ("plan.model-directory", subject, "config.json: No such file or directory")
    cut = model_files(weights={"bytes": 10, "problem": "model.safetensors: is cut off: 5 of 10 bytes"})
    assert refused(on_gpus(cut)) == ("plan.model-weights", subject, "model.safetensors: is cut off: 5 of 10 bytes")


@pytest.mark.parametrize(
    ("against", "verdict"),
    [
        ({"tokens": 1000, "other": 900, "example": "'a' is 1 here, 0 there", "problem": ""}, "error"),
        ({"tokens": 1000, "other": 3, "example": "'a' is 1 here, 0 there", "problem": ""}, "warning"),
        ({"tokens": 0, "other": 0, "example": "", "problem": "tokenizer.json: 'model'"}, "could not check"),
        ({"tokens": 1000, "other": 0, "example": "", "problem": ""}, None),
        (None, None),
    ],
)
def test_a_draft_for_another_tokenizer_is_refused(against: t.Any, verdict: t.Optional[str]) -> None:
    files = {**model_files(), "/srv/draft": model_files(tokenizer="b", against=against)["/srv/target"]}
    made = on_gpus(files, draft={"path": "/srv/draft"}, speculative={"algorithm": "STANDALONE"})
    found = [(one["verdict"], one["subject"]) for one in made["findings"] if one["id"] == "plan.tokenizer"]
    assert found == ([(verdict, "ct200: specdec_instances[main].draft")] if verdict else [])


def test_a_model_that_cannot_fit_is_refused_although_its_gpus_are_busy() -> None:
    files = model_files(weights={"bytes": 250 * 10**9, "problem": ""})
    id_, _subject, found = refused(on_gpus(files, tensor_parallel=2))
    assert id_ == "fit.weights" and found == "125.0 GB weights = 125.0 GB on each GPU"
    assert errors(on_gpus(model_files(weights={"bytes": 190 * 10**9, "problem": ""}), tensor_parallel=2)) == []


def test_more_gpus_than_there_are_and_heads_that_cannot_be_shared_out_are_refused() -> None:
    assert refused(on_gpus(tensor_parallel=4))[0] == "parallel.gpus"
    odd = model_files(config={"model_type": "qwen3", "num_attention_heads": 7})
    assert refused(on_gpus(odd, tensor_parallel=2))[0] == "parallel.heads"


def test_a_way_to_speculate_that_cannot_work_is_refused_in_the_plan() -> None:
    dflash = {"speculative": {"algorithm": "DFLASH"}}
    assert refused(on_gpus(**dflash)) == (
        "speculative.draft",
        "ct200: specdec_instances[main].draft",
        "no draft, sglang 0.5.23, sm120",
    )
    draft = {"config": {"architectures": ["DFlashDraftModel"]}}
    files = {**model_files(config={"architectures": ["GPT2LMHeadModel"]}), "/srv/draft": {**model_files()["/srv/target"], **draft}}
    assert refused(on_gpus(files, draft={"path": "/srv/draft"}, tensor_parallel=2, **dflash)) == (
        "speculative.target",
        "ct200: specdec_instances[main].model",
        "GPT2LMHeadModel",
    )


def test_a_derived_port_is_looked_at_and_not_beyond_the_last() -> None:
    spread = {"tensor_parallel": 2, "attention_data_parallel": 2}
    assert refused(on_gpus(port=65400, **spread))[0] == "port.range"
    state = changed(listeners={"30234": [{"pid": 7, "command": "nginx", "cgroup": "/system.slice/nginx.service"}]})
    assert refused(plan(state, draft=None, speculative=None, **spread)) == (
        "plan.port",
        "specdec_instances[main].port on ct200",
        "port 30234 (data-parallel attention) belongs to process 7 (nginx)",
    )


def test_a_model_of_the_controller_is_read_there() -> None:
    models = Path(__file__).resolve().parents[3] / "demo" / "models"
    made = on_gpus({}, model={"directory": str(models / "target")}, tensor_parallel=2)
    assert settings(made)["attention-backend"][0] == "flashinfer"
    odd = on_gpus({}, model={"directory": str(models / "target")}, tensor_parallel=8, gpus="all")
    assert {one["id"] for one in errors(odd)} == {"parallel.gpus", "parallel.heads"}
