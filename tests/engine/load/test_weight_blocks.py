"""Packing by blocks of rows: the bytes are those of whole matrices, and what is there at once stays small."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.safetensors_file import SafetensorsFile
from neuronserve.server.config.formats import Quantization, RequestedFormats, WeightFormats, WeightGroups
from neuronserve.server.device.core import HostUse
from neuronserve.server.device.hbm import Buffer, Hbm
from neuronserve.server.device.layout import is_grouped, scale_bytes, tile_bytes
from neuronserve.server.engine.load import shard_reader
from neuronserve.server.engine.load.checkpoint_weights import CheckpointWeights
from neuronserve.server.engine.load.model_source import open_model
from neuronserve.server.engine.load.shard_reader import ShardReader, row_blocks
from neuronserve.server.engine.load.weights import PackedShard, WeightLoader
from neuronserve.server.engine.rope_tables import BLOCK, fill_rope_tables, inverse_frequencies
from neuronserve.server.errors import CheckpointError
from neuronserve.server.kernels.matmul.groups import quantize_groups
from neuronserve.server.kernels.matmul.packing import GroupMemory, pack_grouped, pack_weights
from neuronserve.server.kernels.matmul.quantize import quantize_rows
from neuronserve.server.models.layer import RopeSpec
from neuronserve.server.models.linear import Axis, HeadCounts, Linear, WeightRows
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.matrices import PackedShape, packed_shapes
from neuronserve.server.placement.shard import ShardSpec
from tools.random_checkpoint.writer import Options, write_checkpoint

MIB = 1 << 20
ROTATED = WeightFormats("bfloat16", "int8", from_values=True)
GROUPED = WeightFormats("bfloat16", "int4", groups=WeightGroups(64, is_symmetric=False))


class Core:
    """Memory that no account counts."""

    index = 0

    def __init__(self, num_bytes: int) -> None:
        self._hbm = Hbm(num_bytes)

    def allocate(self, use: HostUse, name: str, num_bytes: int) -> Buffer:
        del use, name
        return self._hbm.allocate(num_bytes)


def packed(source: CheckpointWeights, matrix: PackedShape, core: int, formats: WeightFormats) -> list[np.ndarray]:
    """Tiles, scales and sums as the source writes them into memory that was not zero."""
    weights = matrix.format_in(formats)
    beside = scale_bytes(weights, formats.groups, matrix.n, matrix.k)
    sizes = [tile_bytes(weights, matrix.n, matrix.k), *(size for size in beside if size)]
    buffers = [Buffer(np.full(size, 0xA5, np.uint8)) for size in sizes]
    source.matrix(matrix, core, PackedShard(*buffers))
    return [buffer.bytes for buffer in buffers]


def packed_whole(reader: ShardReader, matrix: PackedShape, core: int, formats: WeightFormats) -> list[np.ndarray]:
    """The same from the whole matrix at once."""
    weights = matrix.format_in(formats)
    tiles = np.zeros(tile_bytes(weights, matrix.n, matrix.k), np.uint8)
    if weights == "bfloat16" or weights == "float32":  # noqa: PLR1714 - narrows the type
        pack_weights(reader.matrix(matrix, core, weights), tiles)
        return [tiles]
    if is_grouped(weights):
        sizes = scale_bytes(weights, formats.groups, matrix.n, matrix.k)
        scales, shifts = (np.zeros(size, np.uint8) for size in sizes)
        grouped = quantize_groups(reader.matrix(matrix, core, "float32"), weights, formats.groups)
        pack_grouped(grouped, weights, GroupMemory(tiles, scales, shifts))
        return [tiles, scales, shifts]
    rows = quantize_rows(reader.matrix(matrix, core, "float32"), weights)
    pack_weights(rows.codes, tiles)
    return [tiles, rows.scales.view(np.uint8), rows.sums.view(np.uint8)]


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("shape", ["tiny-odd", "tiny-qwen2", "tiny-gpt2", "tiny-neox"])
def test_blocks_give_the_bytes_of_whole_matrices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, tp: int, num_threads: int
) -> None:
    monkeypatch.setattr(shard_reader, "BLOCK", 1)  # the smallest blocks there are
    write_checkpoint(shape, tmp_path / shape, Options())
    spec = open_model(tmp_path / shape, RequestedFormats("bfloat16"), tp).spec
    checkpoint, shard = Checkpoint.open(tmp_path / shape, spec), ShardSpec.of(spec, tp)
    reader = ShardReader(checkpoint, shard)
    matrices = list(packed_shapes(spec, shard))[-5:]
    assert max(len(list(row_blocks(matrix))) for matrix in matrices) > 2
    for formats in (
        WeightFormats("float32"),
        WeightFormats("bfloat16"),
        WeightFormats("bfloat16", "fp8"),
        ROTATED,
        GROUPED,
    ):
        source = CheckpointWeights(checkpoint, shard, formats, num_threads)
        for matrix in matrices:
            for core in range(tp):
                for got, whole in zip(
                    packed(source, matrix, core, formats), packed_whole(reader, matrix, core, formats), strict=True
                ):
                    np.testing.assert_array_equal(got, whole)
        source.finish()


HIDDEN = Axis("hidden", 64)
FUSED = np.random.default_rng(0).standard_normal((3, 4, 16, 64)).astype(np.float32)  # q, k and v of four heads


@pytest.mark.parametrize(
    ("stored", "form"),
    [
        (FUSED.reshape(192, 64), {}),  # all q, then all k, then all v
        (FUSED.reshape(192, 64).T, {"is_transposed": True}),
        (FUSED.swapaxes(0, 1).reshape(192, 64), {"unit_stride": 48}),  # q, k and v of each head
    ],
)
def test_a_core_gets_its_heads_however_a_fused_matrix_is_stored(
    tmp_path: Path, stored: np.ndarray, form: dict[str, Any]
) -> None:
    save_file({"model.qkv.weight": np.ascontiguousarray(stored)}, tmp_path / "model.safetensors")
    step = 16 if "unit_stride" in form else 64
    counts = HeadCounts(4, 4)
    axes = (Axis("query", 4, 16, heads=counts), *[Axis("kv", 4, 16, heads=counts)] * 2)
    parts = tuple(WeightRows("model.qkv", axis, i * step, **form) for i, axis in enumerate(axes))
    spec = DecoderSizes(1, 64, 128, 4, 4, 16, 300).spec("X", 512)
    checkpoint = Checkpoint.of_file(SafetensorsFile(tmp_path / "model.safetensors"))
    reader = ShardReader(checkpoint, ShardSpec.of(spec, 2))
    for core in range(2):
        heads = FUSED[:, 2 * core : 2 * core + 2].reshape(96, 64)
        shape = PackedShape(Linear("qkv", parts, HIDDEN), 96, 64)
        np.testing.assert_array_equal(reader.matrix(shape, core, "float32"), heads)
        block = reader.matrix(shape, core, "float32", slice(32, 64))
        np.testing.assert_array_equal(block, heads[32:64])


GATE = Linear(
    "gate_up",
    (WeightRows("x.gate_proj", Axis("ffn", 16)), WeightRows("x.up_proj", Axis("ffn", 16))),
    Axis("hidden", 64),
)


def test_every_row_is_in_one_block() -> None:
    for n, k in ((16, 64), (32, 1 << 20), (4096, 64), (9728, 896), (32000, 2048), (48, 64)):
        blocks = list(row_blocks(PackedShape(GATE, n, k)))
        assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(n))
        assert all(block.start % 32 == 0 for block in blocks)
        assert all((block.stop - block.start) * k <= max(shard_reader.BLOCK, 32 * k) for block in blocks)


def wide_model(folder: Path) -> tuple[ModelSpec, Path]:
    """Few layers of wide matrices, an output layer of 29 million elements."""
    write_checkpoint("qwen-0.5b", folder, Options(layers=1, vocab=32000))
    return open_model(folder, RequestedFormats("bfloat16"), 1).spec, folder


@pytest.mark.parametrize("quantization", [None, "int8", "fp8", "int4"])
def test_loading_needs_little_beside_the_packed_weights(tmp_path: Path, quantization: Quantization | None) -> None:
    spec, folder = wide_model(tmp_path / "wide")
    model = open_model(folder, RequestedFormats("bfloat16", quantization), 1, num_threads=2)
    loader = WeightLoader(model.source, spec, ShardSpec.of(spec, 1), [Core(256 * MIB)], model.formats)
    tracemalloc.start()  # numpy tells it of every array; the core's memory is a mapping of its own
    try:
        loader.load(lambda _: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB < spec.vocab_size * spec.hidden_size  # less than the largest matrix in 8 bits
    maps = Path("/proc/self/maps").read_text()
    assert str(folder) not in maps


def test_a_block_that_cannot_be_read_ends_the_load(tmp_path: Path) -> None:
    spec, folder = wide_model(tmp_path / "wide")
    model = open_model(folder, RequestedFormats("bfloat16", "int8"), 1, num_threads=2)
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    loader = WeightLoader(model.source, spec, ShardSpec.of(spec, 1), [Core(256 * MIB)], model.formats)
    with pytest.raises(CheckpointError, match="truncated: has become shorter"):
        loader.load(lambda _: None)


@pytest.mark.parametrize("num_positions", [1, BLOCK, 2 * BLOCK + 7])
def test_rotary_tables_by_blocks_are_those_at_once(num_positions: int) -> None:
    rope = RopeSpec(theta=5e5)
    cos, sin = np.empty((2, num_positions, 40), np.float32)
    fill_rope_tables(rope, cos, sin)
    angles = np.arange(num_positions)[:, None] * inverse_frequencies(rope, 80)
    np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=1e-7)
    np.testing.assert_allclose(sin, np.sin(angles), rtol=0, atol=1e-7)
