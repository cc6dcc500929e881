"""Tensors of GGUF files are those of the checkpoint that they were made of, in every type, on every core."""

from __future__ import annotations

import json
import math
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.gguf.groups import GROUP, GROUPED, grouped
from neuronserve.server.checkpoint.gguf.types import block_type
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.model_source import open_model
from neuronserve.server.engine.load.shard_reader import ShardReader
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import tensor_shapes
from neuronserve.server.placement.matrices import packed_shapes
from neuronserve.server.placement.shard import ShardSpec
from tests.checkpoint.gguf.made import write_gguf, write_pair

ASKED = RequestedFormats("float32")
SHAPES = (
    *("tiny-llama", "tiny-llama-linear", "tiny-llama-yarn", "tiny-odd"),
    *("tiny-qwen2", "tiny-qwen3", "tiny-gemma", "tiny-gemma2", "tiny-gemma3"),
    *("tiny-phi3", "tiny-granite", "tiny-olmo2", "tiny-smollm3", "tiny-gpt2", "tiny-cohere"),
    *("tiny-mixtral", "tiny-qwen3-moe", "tiny-olmoe", "tiny-gpt-oss", "tiny-granite-moe", "tiny-llama4"),
    *("tiny-neox", "tiny-phi"),
)
WRITTEN = (Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1)  # the package quantizes to these
READ = (*WRITTEN, Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, Kind.MXFP4)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_files_have_the_checkpoint_and_its_config(tmp_path: Path, shape: str) -> None:
    directory = gguf_directory(write_pair(shape, tmp_path), tmp_path / "cache")
    packed, plain = (open_model(each, ASKED, 1) for each in (directory, tmp_path / "plain"))
    assert packed.spec == plain.spec
    assert packed.notes == ()
    ours, theirs = (Checkpoint.open(each, plain.spec) for each in (directory, tmp_path / "plain"))
    for name in tensor_shapes(plain.spec):
        np.testing.assert_allclose(ours.load(name), theirs.load(name), atol=1e-7)  # norms: 1 added and taken off


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.name)
def test_each_core_gets_its_part_of_what_the_codes_stand_for(tmp_path: Path, kind: Kind) -> None:
    """Codes of rows in pairs and across blocks of columns, for the part of each core."""
    (tmp_path / "plain").mkdir()
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=300, hidden_size=128, intermediate_size=256,
        num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=64,
        rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    (tmp_path / "plain" / "config.json").write_text(json.dumps(config))
    spec = open_spec(tmp_path / "plain")
    random = np.random.default_rng(3)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in tensor_shapes(spec).items()}
    directory = gguf_directory(
        write_gguf(tmp_path / "m.gguf", config, tensors, kind, lambda _: None), tmp_path / "cache"
    )
    checkpoint, shard = Checkpoint.open(directory, spec), ShardSpec.of(spec, 2)
    reader = ShardReader(checkpoint, shard)
    q0 = "model.layers.0.self_attn.q_proj.weight"
    expected = gguf.quants.dequantize(gguf.quants.quantize(tensors[q0], kind), kind)
    np.testing.assert_array_equal(checkpoint.load(q0), expected)
    np.testing.assert_array_equal(checkpoint.load(q0, slice(3, 21), slice(64, 128)), expected[3:21, 64:])
    if group := checkpoint.group(q0):
        codes = checkpoint.load_groups(q0, slice(3, 21), slice(group, 2 * group))
        np.testing.assert_allclose(codes.values(), expected[3:21, group : 2 * group], rtol=1e-5, atol=1e-6)
    assert bool(group) == (kind.name in GROUPED)
    for shape in packed_shapes(spec, shard):
        if shape.linear.is_row_parallel:
            whole = shape.linear.parts[0].weight
            values = gguf.quants.dequantize(gguf.quants.quantize(tensors[whole], kind), kind)
            half = values.shape[1] // 2
            for core in range(2):
                got = reader.matrix(shape, core, "float32")[: len(values), :half]
                np.testing.assert_array_equal(got, values[:, core * half : (core + 1) * half])


def open_spec(directory: Path) -> ModelSpec:
    return read_model_spec(directory)


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.name)
def test_every_type_that_is_promised_can_be_read(kind: Kind) -> None:
    found = block_type(int(kind))
    assert found is not None
    assert found.is_readable
    blocks = np.random.default_rng(5).integers(0, 256, (3, 4 * found.block_bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(blocks, kind)
    np.testing.assert_array_equal(found.values(blocks), expected)
    assert expected.shape == (3, 4 * found.block_size)


@pytest.mark.parametrize("kind", GROUPED)
def test_codes_of_groups_stand_for_the_same_values(kind: str) -> None:
    found = block_type(int(Kind[kind]))
    assert found is not None
    random = np.random.default_rng(9)
    blocks = random.integers(0, 256, (40, 3, found.block_bytes), np.uint8)
    blocks[:, :, :4] = random.uniform(0.01, 2, (40, 3, 2)).astype(np.float16).view(np.uint8)
    if kind == "MXFP4":
        blocks[:, :, 0] = random.integers(115, 130, (40, 3))  # exponents
    rows = blocks.reshape(40, -1)
    codes = grouped(kind, rows)
    assert codes.group == GROUP
    largest = {"int4": 8, "mxfp4": 6, "int8-groups": 16 if kind == "Q5_0" else 128}[GROUPED[kind].held_by]
    assert np.abs(codes.codes.astype(np.float32)).max() in (largest, largest - 1)
    expected = found.values(rows)
    np.testing.assert_allclose(codes.values(), expected, rtol=1e-5, atol=1e-5 * math.sqrt(float((expected**2).mean())))


def test_types_that_no_values_are_known_of_are_refused(tmp_path: Path) -> None:
    path = write_pair("tiny-llama", tmp_path)
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.0.attn_q.weight").field.parts[4][:] = int(Kind.I32)
    reader.data.flush()
    directory = gguf_directory(path, tmp_path / "cache")
    with pytest.raises(CheckpointError, match="dtype I32 is not supported"):
        open_model(directory, ASKED, 1)


def test_values_that_are_not_finite_are_refused_with_the_tensor(tmp_path: Path) -> None:
    path = write_pair("tiny-llama", tmp_path, Kind.F16)
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_up.weight").data[3, 4] = np.inf
    reader.data.flush()
    directory = gguf_directory(path, tmp_path / "cache")
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(CheckpointError, match="infinite") as caught:
        Checkpoint.open(directory, open_spec(directory)).load(name)
    assert (caught.value.tensor, caught.value.file) == (name, str(path))
