"""Models in 4-bit weights: the logits of what the codes stand for, on any number of cores, from any kind of file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.config.formats import Quantization, RequestedFormats, WeightGroups
from neuronserve.server.engine.load.loading import LoadedEngine
from neuronserve.server.engine.load.model_source import describe_checkpoint, open_model
from neuronserve.server.engine.load.shard_reader import ShardReader
from neuronserve.server.engine.load.stored_groups import StoredGroups
from neuronserve.server.errors import DeviceError
from neuronserve.server.kernels.matmul.groups import dequantize_groups
from neuronserve.server.models.tensors import linear_modules
from neuronserve.server.placement.host_footprint import packed_weight_bytes
from neuronserve.server.placement.matrices import packed_shapes
from neuronserve.server.placement.shard import ShardSpec
from tests.checkpoint.test_packed import (
    awq,
    awq_section,
    compressed,
    compressed_section,
    gptq,
    gptq_section,
    write_packed,
)
from tests.depth import representative
from tools.random_checkpoint.writer import Options, write_checkpoint

TOKENS = [1, 7, 30, 99, 4, 4, 250, 31, 8, 77]
Load = Callable[..., LoadedEngine]

# Relative to the largest logit: int8 activations with a scale for each 32, and what bfloat16 leaves between layers.
LOGITS_ERROR = 0.03


def logits(engine: LoadedEngine) -> np.ndarray:
    try:
        return engine.runner.logits(TOKENS)
    finally:
        engine.runner.close()


def write_exact(shape: str, directory: Path, values: np.ndarray) -> None:
    """A checkpoint whose matrices hold some of `values` times a power of two, all of them in any sixteen neighbours."""
    write_checkpoint(shape, directory, Options(dtype="f32"))
    spec, _, _ = describe_checkpoint(directory, RequestedFormats("float32"))
    tensors, random = load_file(directory / "model.safetensors"), np.random.default_rng(3)
    embeddings = [] if not spec.is_tied else ["model.embed_tokens"]
    for module in (*linear_modules(spec), *embeddings):
        if (name := f"{module}.weight") in tensors:
            n, k = tensors[name].shape
            runs = random.permuted(np.tile(values, (n * k // 16, 1)), axis=1)
            tensors[name] = (runs.reshape(n, k) * np.float32(2.0**-7)).astype(np.float32)
    save_file(tensors, directory / "model.safetensors")


INT4 = np.arange(-8, 8, dtype=np.float32)
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32) * 2
INT8 = np.array([127, -127, 1, -1, 0, 63, -90, 12, 2, -3, 5, 100, -77, 44, 31, -8], np.float32) / 8
FP8 = np.array([448, -448, 2**-6, -(2**-6), 2**-9, -(2**-7), 0, 1, -1.125, 1.25, 15, -13, 240, -0.6875, 3, 104]) / 32
EXACT: dict[Quantization, np.ndarray] = {"int4": INT4, "mxfp4": FP4, "int8-groups": INT8, "mxfp8": FP8}


@pytest.mark.parametrize("tp", representative([1, 2, 4], 1, 4))
@pytest.mark.parametrize(
    ("quantization", "groups"),
    [
        ("int4", WeightGroups(32)),
        ("int4", WeightGroups(128, is_symmetric=False)),
        ("mxfp4", None),
        ("int8-groups", None),
        ("mxfp8", None),
    ],
    ids=str,
)
def test_logits_are_those_of_what_the_codes_stand_for(
    tmp_path: Path, load: Load, tp: int, quantization: Quantization, groups: WeightGroups | None
) -> None:
    """The matrices are such that codes stand for them exactly, however they are divided."""
    write_exact("tiny-qwen2", tmp_path / "m", EXACT[quantization])
    want = logits(load(tmp_path / "m", dtype="float32"))
    fields = {"quantization": quantization, "groups": groups, "allow_unsupported_types": True}
    got = logits(load(tmp_path / "m", tp, **fields))
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()


@pytest.mark.parametrize("quantization", ["mxfp4", "mxfp8"])
def test_microscaling_is_refused_on_parts_without_it(tmp_path: Path, load: Load, quantization: Quantization) -> None:
    write_checkpoint("tiny-qwen2", tmp_path / "m", Options())
    refusal = rf"quantization is {quantization}: Inferentia2 of inf2.xlarge does not have the type"
    with pytest.raises(DeviceError, match=refusal):
        load(tmp_path / "m", device="inf2.xlarge", quantization=quantization)
    engine = load(tmp_path / "m", device="trn3-gen1", quantization=quantization)
    engine.runner.close()


@pytest.mark.parametrize("quantization", ["int4", "mxfp4", "fp8"])
@pytest.mark.parametrize("shape", ["tiny-qwen2", "tiny-gemma3"])
def test_the_output_layer_of_coarse_formats_is_in_groups_of_int8(
    tmp_path: Path, load: Load, shape: str, quantization: Quantization
) -> None:
    """The engine holds the bytes that the account foresaw. A layer that is left out keeps its values."""
    write_checkpoint(shape, tmp_path / "m", Options())
    engine = load(tmp_path / "m", quantization=quantization, allow_unsupported_types=True)
    engine.runner.close()
    shard = ShardSpec.of(engine.spec, 1)
    *layers, head = packed_shapes(engine.spec, shard)
    assert {each.format_in(engine.formats) for each in layers} == {quantization}
    assert head.format_in(engine.formats) == "int8-groups"
    assert engine.info.host_memory["weights"] == packed_weight_bytes(engine.spec, shard, engine.formats)
    left_out = RequestedFormats("bfloat16", quantization, head.modules)
    assert head.format_in(open_model(tmp_path / "m", left_out, 1).formats) == "bfloat16"


FILES = [
    ("gptq", gptq_section(4, 32), gptq, 4, 32, "any", False),
    ("gptq-symmetric", gptq_section(4, 64, sym=True), gptq, 4, 64, "middle", False),
    ("awq", awq_section(4, 32), awq, 4, 32, "any", False),
    ("compressed", compressed_section(4, 32, symmetric=False), compressed, 4, 32, "any", False),
    ("gptq-row", gptq_section(4, -1), gptq, 4, -1, "any", False),
]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("case", FILES, ids=lambda case: str(case[0]))
def test_codes_of_files_are_kept(tmp_path: Path, divisible: str, case: Any, tp: int) -> None:
    """Check that a core's codes mean the file's values, as near as float16 holds scales and shifts."""
    write_packed(tmp_path, case, divisible)
    folder, asked = tmp_path / "packed", RequestedFormats("bfloat16")
    model = open_model(folder, asked, tp)
    assert model.formats.quantization == "int4"
    assert model.formats.groups.is_symmetric == (case[0] == "gptq-symmetric")
    spec, _, stored = describe_checkpoint(folder, asked)
    checkpoint, shard = Checkpoint.open(folder, spec, stored), ShardSpec.of(spec, tp)
    reader, groups = ShardReader(checkpoint, shard), StoredGroups(checkpoint, shard)
    for shape in packed_shapes(spec, shard):
        for core in range(tp):
            rows = slice(0, shape.n)
            found = groups.grouped(shape, core, "int4", model.formats.groups, rows)
            assert (found is None) == (shape.name == "lm_head")
            assert shape.format_in(model.formats) == ("bfloat16" if found is None else "int4")
            if found is None:
                continue
            want = reader.matrix(shape, core, "float32", rows)
            steps = np.abs(found.scales).max()
            assert np.abs(dequantize_groups(found, "int4") - want).max() <= 0.01 * steps


def test_files_with_groups_that_are_none_of_ours_take_eight_bits(tmp_path: Path) -> None:
    write_packed(tmp_path, ("gptq", gptq_section(4, 16), gptq, 4, 16, "any", False))
    model = open_model(tmp_path / "packed", RequestedFormats("bfloat16"), 1)
    assert model.formats.quantization == "int8-groups"
    assert model.formats.modules_to_not_convert == ("lm_head",)
    assert open_model(tmp_path / "packed", RequestedFormats("bfloat16", "int4"), 1).formats.quantization == "int4"


def test_a_quantized_file_gives_the_logits_of_its_values(tmp_path: Path, divisible: str, load: Load) -> None:
    write_packed(tmp_path, FILES[2], divisible)
    want = logits(load(tmp_path / "packed", dtype="float32", quantization="none"))
    got = logits(load(tmp_path / "packed"))
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()
