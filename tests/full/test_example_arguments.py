# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The arguments of inventories/example, resolved and checked by the code of the SGLang that each deployment names, on a torch for the CPU.

Engine, transformers and the check are the real ones, installed from a lock of the lane cpu. Doubles: the GPUs (tests/doubles/cudagpus.py
and an nvidia-smi, both fed from the fixture of the node), the kernels' package, and models that are configurations without weights.
Of the nightly, which no index holds, the nearest release stands in.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest
import test_example_inventory as example
import yaml
from flow import CHECKOUT, INVENTORY

from ansible_collections.specdec.serving.plugins.module_utils import locks, probes, stacks
from ansible_collections.specdec.serving.plugins.plugin_utils import processes

PYTHON = "3.11"
GPUS = json.loads((CHECKOUT / "tests" / "doubles" / "nvml" / "hosts" / "rtx-pro-6000.json").read_text())
STACKS = yaml.safe_load((Path(stacks.__file__).parent / "data" / "stacks.yml").read_text())
DEMO = yaml.safe_load((INVENTORY / "group_vars" / "blackwell.yml").read_text())
DOUBLE = CHECKOUT / "tests" / "doubles" / "cudagpus.py"

#: Per host: the release whose code checks, and what its environment has besides.
ENGINES = {
    "ct200": ("0.5.9", {}),
    "ct210": ("0.5.10.post1", {}),
    "ct230": ("0.5.9", {"transformers": "5.2.0"}),
}

#: What the engine asks of a model's config.json besides what the plan asks.
COMMON = {"hidden_size": 4096, "num_hidden_layers": 60, "vocab_size": 151936, "dtype": "bfloat16", "max_position_embeddings": 262144}
CONFIGS: dict[str, dict[str, t.Any]] = {
    "org/target": {"architectures": ["Qwen3MoeForCausalLM"], **COMMON, "head_dim": 128},
    "org/target-DFlash": {"architectures": ["DFlashDraftModel"], **COMMON, "num_hidden_layers": 5},
    "org/Qwen3.5-397B-A17B-NVFP4": {"architectures": ["Qwen3_5MoeForConditionalGeneration"]},
    "org/GLM-5-NVFP4": {
        "architectures": ["GlmMoeDsaForCausalLM"],
        **COMMON,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_head_dim": 128,
        "index_n_heads": 32,
    },
    "org/GLM-5-EAGLE3": {"architectures": ["LlamaForCausalLMEagle3"], **COMMON, "num_hidden_layers": 1},
}


def environment(directory: Path, version: str, pins: t.Mapping[str, str]) -> Path:
    """A virtual environment with that SGLang, its requirements and stand-ins; returns its Python."""
    subprocess.run([sys.executable, str(CHECKOUT / "demo" / "shim" / "build.py"), str(directory / "wheels")], check=True)
    facts = {
        "os": {"system": "Linux", "name": "Debian", "machine": "x86_64", "glibc": "2.36"},
        "gpus": {"source": "none", "driver": None, "devices": []},
        "pythons": [{"path": "python", "version": PYTHON + ".2", "implementation": "cpython", "build": "", "headers": True}],
    }
    engine = {"name": "sglang", "version": version, "lane": "cpu"}
    stack, found = stacks.resolve(STACKS, facts, engine, {**DEMO["specdec_pins"], **pins}, ["sgl-kernel-cpu-standin==0.5.23"])
    assert stack, found
    uv = shutil.which("uv")
    assert uv
    wheels = locks.wheel_directories([str(directory / "wheels")], os.environ)
    lock = locks.lock(locks.inputs(stack), processes.run, uv, wheels, user_config=True)
    (directory / "lock.txt").write_text(lock.text())
    subprocess.run([uv, "venv", "--quiet", "--python", PYTHON, str(directory / "venv")], check=True)
    python = directory / "venv" / "bin" / "python"
    links = [word for one in wheels for word in ("--find-links", str(one))]
    subprocess.run([uv, "pip", "sync", "--quiet", "--python", str(python), *links, str(directory / "lock.txt")], check=True)
    return python


def add_ddtree(python: Path) -> None:
    """The smallest overlay that has 0.5.9 know DDTREE."""
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    for name, old, new in (
        ("speculative/spec_info.py", "    NGRAM = auto()\n", "    NGRAM = auto()\n    DDTREE = auto()\n"),
        ("server_args.py", '"STANDALONE", "NGRAM"]', '"STANDALONE", "NGRAM", "DDTREE"]'),
    ):
        path = site / "sglang" / "srt" / name
        text = path.read_text()
        assert text.count(old) == 1, name
        path.unlink()  # it may be a link into uv's cache
        path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, t.Any]:
    """The plans of the example's hosts."""
    world = example.World(tmp_path_factory.mktemp("example"))
    facts = example.state(tmp_path_factory.mktemp("node"), tmp_path_factory.mktemp("double"))
    world.keep_overlay()
    world.keep_wheels()
    world.keep_locks(world.play(facts))
    return world.play(facts)


def model(directory: Path, repo: str) -> str:
    """A directory that holds a model's configuration."""
    config = {**example.MODELS[repo][0], **CONFIGS[repo]}
    if "text_config" in config:
        config["text_config"] = {**COMMON, **config["text_config"]}
    place = directory / repo
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    return str(place)


@pytest.mark.parametrize("host", list(ENGINES))
def test_the_engines_own_code_resolves_and_accepts_what_is_planned(planned: dict[str, t.Any], tmp_path: Path, host: str) -> None:
    version, pins = ENGINES[host]
    python = environment(tmp_path, version, pins)
    [release] = planned[host]["releases"]
    config, facts = dict(release["files"]["config"]), release["files"]["facts"]
    if config["speculative-algorithm"] == "DDTREE":
        add_ddtree(python)
    instances = yaml.safe_load((example.EXAMPLE / "host_vars" / (host + ".yml")).read_text())["specdec_instances"]
    for part, argument in (("model", "model-path"), ("draft", "speculative-draft-model-path")):
        if argument in config:
            config[argument] = model(tmp_path / "models", instances[0][part]["repo"])
    device = GPUS["devices"][0]
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + "echo %d\n" % (device["memory"] // 2**20) * len(GPUS["devices"]))
    smi.chmod(0o755)
    task = {**probes.task({**facts, "models": []}, config, 900), "then": [*facts["dry_run"]["then"]]}
    fed = (device["name"], device["compute_capability"], device["memory"], len(GPUS["devices"]), "13.0")
    source, call = probes.script(task).rsplit("\n\nmain(", 1)
    double = DOUBLE.read_text().replace("from __future__ import annotations\n", "")
    (tmp_path / "stages.py").write_text("%s\n%s\nfeed(*%r)\nmain(%s" % (source, double, fed, call))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ.update(PATH="%s:%s" % (smi.parent, os.environ["PATH"]), HF_HUB_OFFLINE="1", HOME=str(tmp_path))
    done = subprocess.run(
        [str(python), str(tmp_path / "stages.py")], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    stages = {line["stage"]: line for line in lines if "stage" in line}
    assert stages["arguments"]["ok"], (stages["arguments"], done.stderr[-3000:])
    assert stages["algorithm"]["ok"], stages["algorithm"]
    # what could not be checked without CUDA, by name
    assert [name for name, line in stages.items() if not line["ok"]] == ["flashinfer"]
