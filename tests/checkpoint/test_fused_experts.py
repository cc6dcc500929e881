"""Experts of a layer in one tensor are read as if each had its own, in every form that families have; or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.microscaling import microscaled_codes
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.families import model_spec_of
from tests.checkpoint.gguf.made import random_tensors, together
from tests.checkpoint.gguf.test_apart import CASES
from tools.random_checkpoint.writer import Options, write_checkpoint

Tensors = dict[str, np.ndarray]
STEM = "model.layers.1.mlp.experts"


def written(directory: Path, shape: str) -> tuple[Path, Tensors]:
    write_checkpoint(shape, directory, Options(dtype="f32"))
    return directory, load_file(directory / "model.safetensors")


def opened(directory: Path, tensors: Tensors) -> Checkpoint:
    save_file(tensors, directory / "model.safetensors")
    return Checkpoint.open(directory, read_model_spec(directory))


def test_outputs_first_gates_before_ups(tmp_path: Path) -> None:
    """This is the order that transformers 5 has Qwen's in memory."""
    directory, tensors = written(tmp_path / "model", "tiny-qwen3-moe")
    apart = dict(tensors)
    for layer in range(4):
        stem = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            np.stack([tensors.pop(f"{stem}.{i}.{name}_proj.weight") for i in range(20)])
            for name in ("gate", "up", "down")
        )
        tensors |= {f"{stem}.gate_up_proj": np.concatenate([gate, up], axis=1), f"{stem}.down_proj": down}
    checkpoint = opened(directory, tensors)
    assert not checkpoint.surplus
    for name, values in apart.items():
        assert np.array_equal(checkpoint.load(name), values)


FAMILIES = [name for name, case in CASES.items() if "num_experts_per_tok" in case.own or "top_k_experts" in case.own]


APART = "minimax", "nemotron"  # which every file has apart


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith(APART)])
def test_every_family_with_experts_is_read_apart_and_together(tmp_path: Path, name: str) -> None:
    """transformers writes most families' experts together; published files have them apart."""
    spec = model_spec_of(CASES[name].own)
    tensors = random_tensors(spec)
    whole: Tensors = {}
    for each, values in together(tensors).items():
        stem, _, part = each.removesuffix(".weight").rpartition(".experts.")
        if not stem:
            whole[each] = values
        elif part == "down_proj":
            whole[f"{stem}.experts.down_proj"] = values
        elif part == "gate_proj":
            ups = [tensors[each.replace("experts.gate", f"experts.{i}.up")] for i in range(len(values))]
            whole[f"{stem}.experts.gate_up_proj"] = np.concatenate([values, np.stack(ups)], axis=1)
    for form, stored in (("apart", tensors), ("together", whole)):
        (tmp_path / form).mkdir()
        save_file(stored, tmp_path / form / "model.safetensors")
        checkpoint = Checkpoint.open(tmp_path / form, spec)
        assert checkpoint.surplus == ()
        for each, values in tensors.items():
            np.testing.assert_array_equal(checkpoint.load(each), values)


@pytest.mark.parametrize(("shape", "module"), [("tiny-gpt-oss", "mlp"), ("tiny-llama4", "feed_forward")])
def test_inputs_first(tmp_path: Path, shape: str, module: str) -> None:
    """GPT-OSS has gates and ups in turns, Llama 4 one after the other."""
    directory, tensors = written(tmp_path / "model", shape)
    checkpoint = Checkpoint.open(directory, read_model_spec(directory))
    stem = f"model.layers.1.{module}.experts"
    both, down = tensors[f"{stem}.gate_up_proj"], tensors[f"{stem}.down_proj"]
    half = both.shape[2] // 2
    gates, ups = (both[..., ::2], both[..., 1::2]) if shape == "tiny-gpt-oss" else (both[..., :half], both[..., half:])
    for i in (0, 7, 3):
        for name, values in (("gate", gates[i]), ("up", ups[i]), ("down", down[i])):
            got = checkpoint.load(f"{stem}.{i}.{name}_proj.weight", slice(5, 60), slice(2, 40))
            assert np.array_equal(got, values.T[5:60, 2:40])
    if shape == "tiny-gpt-oss":
        biases = tensors[f"{stem}.gate_up_proj_bias"][4]
        assert np.array_equal(checkpoint.load(f"{stem}.4.up_proj.bias"), biases[1::2])
        assert np.array_equal(checkpoint.load(f"{stem}.4.gate_proj.bias", slice(3, 9)), biases[::2][3:9])


def mxfp4_values(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[rows, inputs] bfloat16 of blocks [rows, inputs / 32, 16]."""
    return microscaled_codes(blocks.reshape(len(blocks), -1), scales, "mxfp4").values().astype(bfloat16)


def test_mxfp4_values_are_those_of_transformers() -> None:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (4, 6, 3, 16), dtype=np.uint8)
    scales = rng.integers(100, 140, (4, 6, 3), dtype=np.uint8)
    theirs = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.bfloat16)
    for i in range(4):
        assert np.array_equal(mxfp4_values(blocks[i], scales[i]).astype(np.float32), theirs[i].T.float().numpy())
    assert np.isnan(mxfp4_values(blocks[0], np.full((6, 3), 255, np.uint8)).astype(np.float32)).all()


def as_mxfp4(directory: Path, tensors: Tensors) -> Tensors:
    """Random codes in the place of GPT-OSS's experts, with inputs padded to whole blocks by the shape."""
    rng = np.random.default_rng(1)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=np.uint8)
        tensors[f"{name}_scales"] = rng.integers(120, 126, (experts, outputs, inputs // 32), dtype=np.uint8)
    return tensors


def gpt_oss_of_whole_blocks(directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Tensors]:
    from tools.random_checkpoint import shapes

    shape = shapes.SHAPES["tiny-gpt-oss"]
    monkeypatch.setitem(shape.options, "intermediate_size", 96)
    return written(directory, "tiny-gpt-oss")


def test_mxfp4_experts_are_read_as_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, tensors = gpt_oss_of_whole_blocks(tmp_path / "model", monkeypatch)
    tensors = as_mxfp4(directory, tensors)
    checkpoint = opened(directory, tensors)
    assert not checkpoint.surplus
    both = mxfp4_values(tensors[f"{STEM}.gate_up_proj_blocks"][2], tensors[f"{STEM}.gate_up_proj_scales"][2])
    assert np.array_equal(checkpoint.load(f"{STEM}.2.up_proj.weight"), both[1::2].astype(np.float32))
    bits = checkpoint.load_bf16(f"{STEM}.2.gate_proj.weight", slice(1, 5))
    assert np.array_equal(bits, both[::2][1:5].view(np.uint16))
    assert checkpoint.dtype(f"{STEM}.2.gate_proj.weight") == "MXFP4"


LIES: list[tuple[str, Any, str]] = [
    ("gate_up_proj", lambda t: t[:7], r"has shape \[7, 64, 144\], config.json makes it 3 dimensions, the first of 8"),
    ("gate_up_proj", lambda t: t[:, :60], r"has shape \[72, 60\], config.json makes it \[72, 64\]"),
    ("down_proj", lambda t: t[0], r"has shape \[72, 64\], config.json makes it 3 dimensions"),
    ("gate_up_proj_bias", lambda t: t[:, :100], r"has shape \[50\], config.json makes it \[72\]"),
    ("down_proj", lambda t: t.astype(np.int32), "dtype I32 is not supported"),
    ("down_proj", lambda t: np.where(t == t[3, 4, 5], np.inf, t), "NaN, infinite or too large"),
]


@pytest.mark.parametrize("case", range(len(LIES)))
def test_a_tensor_of_all_experts_that_is_not_as_the_model_says_is_refused(tmp_path: Path, case: int) -> None:
    name, change, complaint = LIES[case]
    directory, tensors = written(tmp_path / "model", "tiny-gpt-oss")
    tensors[f"{STEM}.{name}"] = np.ascontiguousarray(change(tensors[f"{STEM}.{name}"]))
    with pytest.raises(CheckpointError, match=complaint):
        opened(directory, tensors).load(f"{STEM}.3.down_proj.weight")


def test_blocks_without_scales_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, tensors = gpt_oss_of_whole_blocks(tmp_path / "model", monkeypatch)
    tensors = as_mxfp4(directory, tensors)
    tensors[f"{STEM}.down_proj_scales"] = tensors[f"{STEM}.down_proj_scales"][:, :5]
    with pytest.raises(CheckpointError, match="MXFP4 blocks without scales"):
        opened(directory, tensors)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, tensors = gpt_oss_of_whole_blocks(tmp_path / "model", monkeypatch)
    tensors = as_mxfp4(directory, tensors)
    tensors[f"{STEM}.down_proj_scales"][1, 2, 0] = 255
    with pytest.raises(CheckpointError, match="NaN, infinite or too large"):
        opened(directory, tensors).load(f"{STEM}.1.down_proj.weight")


def test_bfloat16_holds_every_value_of_mxfp4() -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    exact = mxfp4_values(codes, np.full((1, 16), 127, np.uint8)).astype(np.float64)
    assert set(np.abs(exact).ravel()) == {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0}
    assert bfloat16(6.0) == 6.0
