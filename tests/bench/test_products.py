"""The product probes: their products are right, so that nothing was optimized away, and a host's best is named."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from neuronserve.server.bench.ceilings import ProductProbe, product_unit
from neuronserve.server.config.formats import Isa, WeightFormat
from neuronserve.server.host.isa import ISAS
from neuronserve.server.kernels import dispatch
from neuronserve.server.kernels.dispatch import host_isas
from neuronserve.server.kernels.isa import cache
from neuronserve.server.kernels.matmul.probe import Block
from neuronserve.server.kernels.workers import WorkerPool

K_TILES, ROUNDS = 3, 2
UNITS: list[tuple[WeightFormat, Isa | None]] = [
    *((weights, isa) for weights in ("float32", "bfloat16", "int8", "int4") for isa in ISAS),
    ("fp8", None),
]
WIDENED_TO_FLOAT32 = {"avx512-bf16", "neon-i8mm"}  # bfloat16 has a unit there that stored formats do not use
UNSIGNED = {"int8 avx512-vnni", "int8 avx2-vnni", "int8 avx2"}  # VPDPBUSD, VPMADDUBSW: one factor is unsigned
TYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8, "int16": np.int16}


@pytest.fixture(scope="module")
def pool(kernel_cache: str) -> Any:
    cache.use_cache(kernel_cache)
    workers = WorkerPool(2)
    yield workers
    workers.close()


def products(area: Any, block: Block, kind: str) -> Any:
    """Return the sums [columns/16][rows][16] of one round over an area."""
    cell = np.dtype(TYPES[kind])
    weights_at, sums_at = block.weights_at(K_TILES), block.sums_at(K_TILES)
    per_word = 4 // cell.itemsize
    panels = area[:weights_at].view(cell).reshape(-1, K_TILES, 16, 16 * per_word).astype(np.float64)
    rows = panels.transpose(0, 2, 1, 3).reshape(-1, K_TILES * 16 * per_word)[: block.rows]
    tiles = area[weights_at:sums_at].view(cell).reshape(-1, K_TILES * 16, 16, per_word).astype(np.float64)
    return np.stack([rows @ tile.transpose(0, 2, 1).reshape(-1, 16) for tile in tiles])


@pytest.mark.parametrize(("weights", "isa"), UNITS)
def test_the_sums_are_those_of_all_rounds(pool: WorkerPool, weights: WeightFormat, isa: Isa | None) -> None:
    if isa is not None and isa not in host_isas():
        pytest.skip(f"this host has no {isa}")
    unit = product_unit(weights, isa)
    kind = unit.name.split()[0]
    probe = ProductProbe(pool, unit, K_TILES)
    areas = probe.memory.bytes.reshape(pool.num_threads, -1)
    rng, sums_at = np.random.default_rng(1), unit.block.sums_at(K_TILES)
    cell = np.dtype(TYPES[kind])
    for area in areas:
        area[:sums_at] = rng.integers(-9, 10, sums_at // cell.itemsize).astype(cell).view(np.uint8)
        if unit.name in UNSIGNED:
            area[unit.block.weights_at(K_TILES) : sums_at] &= 7
    assert probe.seconds(ROUNDS) > 0
    for area in areas:
        want = products(area, unit.block, kind)
        got = area[sums_at : unit.block.num_bytes(K_TILES)].view(np.int32 if kind.startswith("int") else np.float32)
        assert np.array_equal(got.reshape(want.shape), ROUNDS * want)


def test_a_rate_is_what_all_threads_multiplied_in_the_median_time(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = ProductProbe(pool, product_unit("int8"), K_TILES)
    kind = probe.unit.name.split()[0]
    area = probe.memory.bytes.reshape(pool.num_threads, -1)[0]
    depth, _, columns = products(area, probe.unit.block, kind).shape
    per_word = 4 // np.dtype(TYPES[kind]).itemsize
    operations = 2 * depth * columns * probe.unit.block.rows * K_TILES * 16 * per_word * pool.num_threads
    paces = iter((1e-3, 5e-3, 2e-3))
    monkeypatch.setattr(probe, "seconds", lambda rounds: rounds * next(paces))
    assert probe.measure(3) == pytest.approx(operations / 2e-3 / 1e12)


@pytest.mark.parametrize("isa", ISAS)
def test_stored_formats_use_the_bfloat16_unit_or_widen_to_float32(isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "host_isas", lambda: ISAS)
    fp8, bfloat16 = product_unit("fp8", isa), product_unit("bfloat16", isa)
    assert fp8 == product_unit("int8-weight-only", isa)
    assert fp8 == (product_unit("float32", isa) if isa in WIDENED_TO_FLOAT32 else bfloat16)
