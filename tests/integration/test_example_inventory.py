# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The deployments of inventories/example, each planned in full on nodes of eight RTX PRO 6000, as ``--check --diff`` shows it.

The playbook, the inventory, the pins directory and the planner are the real ones. The host is a double: its GPUs are those of
tests/doubles/nvml/hosts/rtx-pro-6000.json, its models are configurations without weights, and what the pins hold are stand-ins of
the versions that the plan asks for (that uv resolves them is shown in test_deployments.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import typing as t
from pathlib import Path

import pytest
import yaml
from flow import CHECKOUT

from ansible_collections.specdec.serving.plugins.module_utils import bundles, locks, releasefacts, wheelsources
from ansible_collections.specdec.serving.plugins.module_utils.layout import Layout
from ansible_collections.specdec.serving.plugins.plugin_utils.pins import Pins
from tests.unit.module_utils.gpuhost import GpuHost

EXAMPLE = CHECKOUT / "inventories" / "example"
ROLE = CHECKOUT / "roles" / "gpu_host"
HOSTS = ("ct200", "ct210", "ct220", "ct230")
GB = 10**9

#: What the models' config.json say, as far as anybody asks, and the bytes of their weights.
MODELS: dict[str, tuple[dict[str, t.Any], int]] = {
    "org/target": ({"model_type": "qwen3_moe", "num_attention_heads": 64, "num_key_value_heads": 4, "num_experts": 128}, 470 * GB),
    "org/target-DFlash": ({"model_type": "qwen3", "num_attention_heads": 64, "num_key_value_heads": 8, "block_size": 16}, 3 * GB),
    "org/Qwen3.5-397B-A17B-NVFP4": (
        {
            "model_type": "qwen3_5_moe",
            "text_config": {
                "model_type": "qwen3_5_moe_text",
                "num_attention_heads": 32,
                "num_key_value_heads": 2,
                "linear_num_value_heads": 64,
                "num_experts": 512,
            },
            "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        },
        225 * GB,
    ),
    "org/Kimi-K2.5": (
        {
            "model_type": "kimi_k25",
            "text_config": {
                "model_type": "kimi_k2",
                "num_hidden_layers": 61,
                "num_attention_heads": 64,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "n_routed_experts": 384,
            },
        },
        595 * GB,
    ),
    "org/GLM-5-NVFP4": (
        {
            "model_type": "glm_moe_dsa",
            "num_attention_heads": 64,
            "kv_lora_rank": 512,
            "index_topk": 2048,
            "n_routed_experts": 256,
            "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        },
        440 * GB,
    ),
    "org/GLM-5-EAGLE3": ({"model_type": "llama", "num_attention_heads": 64, "num_key_value_heads": 8}, 3 * GB),
}

#: Per host what the plan shows of it: arguments and variables with the beginning of their value, and a part of the reason.
SHOWN: dict[str, list[tuple[str, str, str]]] = {
    "ct200": [
        ("speculative-algorithm", "DDTREE", "instance"),
        ("tp-size", "8", ""),
        ("attention-backend", "flashinfer", "FlashAttention 3"),
        ("disable-custom-all-reduce", "True", "without NVLink"),
        ("environment.NCCL_P2P_LEVEL", "SYS", "host bridges"),
    ],
    "ct210": [
        ("kv-cache-dtype", "bfloat16", "answered wrongly"),
        ("moe-runner-backend", "flashinfer_cutlass", "NVFP4 experts"),
        ("fp4-gemm-backend", "flashinfer_cutlass", "cuDNN"),
        ("attention-backend", "triton", "this model's attention"),
        ("speculative-algorithm", "NEXTN", "instance"),
    ],
    "ct220": [
        ("tensor-parallel-size", "8", ""),
        ("disable-custom-all-reduce", "True", "without NVLink"),
        ("max-model-len", "131072", "instance"),
    ],
    "ct230": [
        ("speculative-algorithm", "EAGLE3", "instance"),
        ("moe-runner-backend", "flashinfer_cutlass", "NVFP4 experts"),
    ],
}
ENGINES = {
    "ct200": "sglang 0.5.9, lane cu130",
    "ct210": "sglang 0.5.10.dev20260301, lane nightly-cu130",
    "ct220": "vllm 0.16.0, lane cu128",
    "ct230": "sglang 0.5.9, lane cu130",
}


def state(directory: Path, shared: Path) -> dict[str, t.Any]:
    """A node as gathered: nothing of ours on it yet but the models."""
    instances = [one for path in (EXAMPLE / "host_vars").glob("*.yml") for one in yaml.safe_load(path.read_text())["specdec_instances"]]
    models = [one[part] for one in instances for part in ("model", "draft") if one.get(part)]
    places = {releasefacts.model_on_host(Layout("/opt/specdec"), one): one["repo"] for one in models}
    return {
        "schema": 1,
        "os": {"system": "Linux", "name": "Ubuntu 24.04 LTS", "machine": "x86_64", "glibc": "2.39"},
        "systemd": {"running": True, "version": 255, "container": None},
        "memory": {"total": 1500 * GB, "available": 1400 * GB},
        "disk": {"path": "/opt", "free": 2000 * GB, "total": 4000 * GB},
        "gpus": GpuHost("rtx-pro-6000", directory, shared).gather(),
        "pythons": [
            {"path": "/usr/bin/python3.12", "version": "3.12.3", "implementation": "cpython", "build": "3.12.3 (main)", "headers": True}
        ],
        "tools": {"specdec": None, "uv": None},
        "models": [str(Path(str(place)).relative_to("/opt/specdec/models")) for place in places],
        "model_files": {place: described(*MODELS[repo]) for place, repo in places.items()},
        **{name: [] for name in ("wheels", "overlays")},
        **{name: {} for name in ("environments", "instances", "secrets", "listeners")},
        "job": None,
    }


def described(config: dict[str, t.Any], size: int) -> dict[str, t.Any]:
    weights = {"bytes": size, "problem": ""}
    return {"config": config, "problem": "", "quantization": None, "weights": weights, "tokenizer": None, "against": None}


class World:
    """A controller of its own: pins, cache, and the playbook that plans."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pins = Pins(directory / "pins")
        self.cache = directory / "cache"
        self.text = ""

    def play(self, facts: dict[str, t.Any]) -> dict[str, t.Any]:
        """Plan all hosts as the role does, on these facts instead of a question to a host; the plans by host."""
        (self.directory / "state.json").write_text(json.dumps(facts))
        plan = "{{ __gpu_host_wanted | combine({'state': lookup('ansible.builtin.file', state_file) | from_json}) }}"
        keep = {"content": "{{ made | to_json }}", "dest": "%s/{{ inventory_hostname }}.json" % self.directory, "mode": "0600"}
        play = {
            "hosts": "blackwell",
            "gather_facts": False,
            "become": False,
            "vars_files": [str(ROLE / "defaults" / "main.yml"), str(ROLE / "vars" / "main.yml")],
            "tasks": [
                {"specdec.serving.plan": plan, "register": "made"},
                {"ansible.builtin.copy": keep, "delegate_to": "localhost", "connection": "local", "check_mode": False, "diff": False},
            ],
        }
        book = self.directory / "plan.yml"
        book.write_text(yaml.safe_dump([play]))
        given = {"specdec_pins_dir": str(self.pins.directory), "state_file": str(self.directory / "state.json"), "ansible_become": False}
        done = subprocess.run(
            ["ansible-playbook", str(book), "-i", str(EXAMPLE), "--check", "--diff", "-e", json.dumps(given)],
            cwd=CHECKOUT,
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), "ANSIBLE_NOCOLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        self.text = done.stdout
        assert done.returncode == 0, done.stdout[-6000:]
        return {host: json.loads((self.directory / (host + ".json")).read_text()) for host in HOSTS}

    def keep_overlay(self) -> None:
        """What a capture of ct129 would leave: an overlay over 0.5.9 that knows DDTREE."""
        path = "sglang/srt/speculative/ddtree_utils.py"
        manifest = {
            "schema": 1,
            "base": {"name": "sglang", "version": "0.5.9"},
            "python": "3.12",
            "files": [bundles.entry(path, "add", None, b"TREE = 1\n")],
            "adds": {"algorithms": ["DDTREE"], "arguments": []},
        }
        bundle = bundles.seal(manifest, {path: b"TREE = 1\n"})
        bundles.write_bundle(self.pins.bundle(bundle.manifest["digest"]), bundle)
        self.pins.keep_reference("ct129", "sglang", bundle.manifest["digest"], {})

    def keep_wheels(self) -> None:
        """What pins name by address, or build from a commit."""
        for name, source in yaml.safe_load((EXAMPLE / "host_vars" / "ct210.yml").read_text())["specdec_pins"].items():
            if isinstance(source, dict) and "url" in source:
                place = wheelsources.downloaded(self.cache / "specdec", source)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(b"")
            elif isinstance(source, dict):
                built = self.directory / (name + ".whl")
                built.write_bytes(b"")
                filename = "%s-0.4.1.post1-cp310-abi3-linux_x86_64.whl" % name.replace("-", "_")
                record = {"name": name, "version": "0.4.1.post1", "filename": filename, "sha256": "3" * 64, "glibc": "2.39"}
                key = wheelsources.build_key(source, "3.12", "x86_64")
                self.pins.keep_wheel(key, {**record, "built_on": source["build_host"]}, built)

    def keep_locks(self, plans: t.Mapping[str, t.Any]) -> None:
        """Locks of the versions that the plans ask for."""
        for pin in (one for plan in plans.values() for one in plan["missing_pins"]):
            assert pin["kind"] == "lock", pin
            self.pins.keep_lock(pin["name"], lock_for(pin["inputs"]))


def lock_for(inputs: t.Mapping[str, t.Any]) -> str:
    named = [line for line in (*inputs["requirements"], *inputs["overrides"]) if "==" in line]
    versions = {one.partition("==")[0].partition("[")[0]: one.partition("==")[2].partition(";")[0].strip() for one in named}
    versions.setdefault("torch", inputs["torch"])
    versions.setdefault("flashinfer-python", inputs["flashinfer"])
    if inputs["kernel"]:
        versions.setdefault(*inputs["kernel"])
    sources = inputs["sources"]
    versions.update({name: wheelsources.version_of(one["filename"]) for name, one in sources.items() if "filename" in one})
    packages = tuple(
        locks.Package(name, version, (sources.get(name, {}).get("sha256", "0" * 64),)) for name, version in sorted(versions.items())
    )
    return locks.Lock(packages, locks.identity(inputs)).text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def planned(world: World, tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    facts = state(tmp_path_factory.mktemp("node"), tmp_path_factory.mktemp("double"))
    world.keep_overlay()
    world.keep_wheels()
    world.keep_locks(world.play(facts))
    return world.play(facts)


@pytest.mark.parametrize("host", HOSTS)
def test_a_deployment_of_the_example_is_planned_in_full(planned: dict[str, t.Any], world: World, host: str) -> None:
    plan = planned[host]
    assert plan["missing_pins"] == [] and [one for one in plan["findings"] if one["verdict"] == "error"] == []
    assert not [one for one in plan["findings"] if one["id"] in ("architecture.unread", "fit.unknown", "parallel.idle")]
    [release] = plan["releases"]
    assert release["engine"] == ENGINES[host]
    shown = {one["name"]: (one["value"], one["origin"]) for one in plan["settings"]}
    for name, value, reason in SHOWN[host]:
        assert shown[name][0] == value and reason in shown[name][1], (name, shown.get(name))
        assert "%s | plan   | %s: %s = %s (" % (host, release["instance"], name, value) in world.text
    assert {"engine_env", "verify", "engine_service"} <= set(plan["stages"])
