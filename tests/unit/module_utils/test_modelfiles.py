# Copyright (c) 2026, specdec.serving contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the files of a model say, read from real directories."""

from __future__ import annotations

import json
import struct
import typing as t
from pathlib import Path

import pytest

from ansible_collections.specdec.serving.plugins.module_utils import modelfiles

MODELS = Path(__file__).resolve().parents[3] / "demo" / "models"


def safetensors(path: Path, **shapes: tuple[int, ...]) -> int:
    """A file of 16-bit tensors; returns their bytes."""
    header: dict[str, t.Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + 2
        for size in shape:
            end = begin + (end - begin) * size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return end


def model(directory: Path, **config: t.Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def tokenizer(directory: Path, tokens: t.Mapping[str, int], **more: t.Any) -> None:
    (directory / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, **more}))


def one(directory: Path) -> dict[str, t.Any]:
    return modelfiles.describe([[str(directory)]])[str(directory)]


def test_a_real_model_with_its_draft() -> None:
    names = [str(MODELS / part) for part in ("target", "draft")]
    target, draft = (modelfiles.describe([names])[name] for name in names)
    assert target["config"]["num_hidden_layers"] == 3 and draft["config"]["num_hidden_layers"] == 1
    size = (MODELS / "target" / "model.safetensors").stat().st_size
    assert size - 8192 < target["weights"]["bytes"] < size and target["weights"]["problem"] == ""
    assert target["tokenizer"] == draft["tokenizer"] and draft["against"] is None


def test_a_model_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    assert modelfiles.describe([[str(tmp_path / "nowhere")]]) == {}


@pytest.mark.parametrize(("content", "problem"), [(None, "No such file"), ("{", "Expecting"), ("[]", "no mapping")])
def test_a_configuration_that_cannot_be_read_says_why(tmp_path: Path, content: t.Optional[str], problem: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    found = one(tmp_path)
    assert found["config"] is None and problem in found["problem"]
    assert found["weights"] is None and found["tokenizer"] is None


def test_the_files_of_the_index_count_and_no_others(tmp_path: Path) -> None:
    first = safetensors(model(tmp_path) / "model-1.safetensors", a=(3, 4))
    second = safetensors(tmp_path / "model-2.safetensors", b=(5,), c=())
    safetensors(tmp_path / "consolidated.safetensors", a=(3, 4), b=(5,))
    index = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert (first, second) == (24, 12)
    assert one(tmp_path)["weights"] == {"bytes": 36, "problem": ""}
    (tmp_path / "model-2.safetensors").unlink()
    assert one(tmp_path)["weights"] == {"bytes": 24, "problem": "model-2.safetensors: No such file or directory"}
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "cannot be read" in one(tmp_path)["weights"]["problem"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"abc", "cut off"), (struct.pack("<Q", 1 << 60), "no safetensors"), (struct.pack("<Q", 2) + b"[]", "no safetensors")],
)
def test_what_is_no_safetensors_file_is_told(tmp_path: Path, content: bytes, problem: str) -> None:
    (model(tmp_path) / "model.safetensors").write_bytes(content)
    assert problem in one(tmp_path)["weights"]["problem"]


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    path = model(tmp_path) / "model.safetensors"
    safetensors(path, a=(100,))
    path.write_bytes(path.read_bytes()[:-50])
    assert "cut off" in one(tmp_path)["weights"]["problem"]


def test_tokenizers_are_compared_by_what_they_know(tmp_path: Path) -> None:
    target, added, other = (model(tmp_path / name) for name in ("target", "added", "other"))
    tokenizer(target, {"a": 0, "b": 1, "c": 2})
    tokenizer(added, {"a": 0}, added_tokens=[{"content": "b", "id": 1}, {"content": "more", "id": 9}])
    tokenizer(other, {"a": 1, "x": 2})
    known = modelfiles.describe([[str(target), str(added)], [str(target), str(other)]])
    assert known[str(target)]["against"] is None
    assert known[str(added)]["against"] == {"tokens": 3, "other": 0, "example": "", "problem": ""}
    assert known[str(other)]["against"] == {"tokens": 2, "other": 2, "example": "'a' is 1 here, 0 there", "problem": ""}
    (other / "tokenizer.json").write_text("[]")
    assert "tokenizer.json" in modelfiles.describe([[str(target), str(other)]])[str(other)]["against"]["problem"]


def test_what_modelopt_wrote_beside_the_configuration(tmp_path: Path) -> None:
    (model(tmp_path) / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert one(tmp_path)["quantization"] == {"quant_algo": "NVFP4"}
