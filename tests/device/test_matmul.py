"""Every matmul kernel of this host against numpy in float64, over odd shapes, cores and threads."""

from __future__ import annotations

import numpy as np
import pytest

from server.device.dispatch import ISAS, host_isas, kernel_set
from server.device.kernels.records import STEP, MatmulOperands
from server.device.layout import round_up
from server.device.workers import WorkerPool
from server.errors import DeviceError
from tests.device.kernel_bench import Array, address, aligned, rounded, run, step_record, to_panels, to_tiles

KERNELS = [("f32", None), *(("bf16", isa) for isa in ISAS)]


def _kernel(cell: str, isa: str | None):  # type: ignore[no-untyped-def]
    if cell == "f32":
        return kernel_set("float32").matmul
    if isa not in host_isas():
        pytest.skip(f"this host has no {isa}")
    return kernel_set("bfloat16", isa).matmul  # type: ignore[arg-type]


def _multiply(pool: WorkerPool, cell: str, isa: str | None, x: Array, shards: list[Array]) -> list[Array]:
    """x @ shard.T for the shard of each core."""
    rows, n = round_up(len(x), 16), shards[0].shape[0]
    panels, tiles = to_panels(x, cell), [to_tiles(shard, cell) for shard in shards]
    outputs = [aligned((rows, n), np.float32) for _ in shards]
    operands = [
        MatmulOperands(address(panels), address(t), address(o), n // 16, x.shape[1] // 32, n, STEP.num_tokens)
        for t, o in zip(tiles, outputs, strict=True)
    ]
    run(pool, _kernel(cell, isa), operands, step_record(num_tokens=len(x)))
    return [o[: len(x)] for o in outputs]


@pytest.mark.parametrize(("cell", "isa"), KERNELS)
@pytest.mark.parametrize(
    ("rows", "k", "n", "cores"), [(1, 32, 16, 1), (3, 96, 48, 2), (16, 64, 80, 3), (17, 160, 112, 1), (67, 96, 176, 2)]
)
def test_matmul_equals_numpy(
    pool: WorkerPool, cell: str, isa: str | None, rows: int, k: int, n: int, cores: int
) -> None:
    rng = np.random.default_rng(rows)
    x = rounded(rng.standard_normal((rows, k)), cell)
    shards = [rounded(rng.standard_normal((n, k)), cell) for _ in range(cores)]
    for got, shard in zip(_multiply(pool, cell, isa, x, shards), shards, strict=True):
        want = x.astype(np.float64) @ shard.T
        assert np.abs(got - want).max() <= 4e-6 * np.abs(want).max() + 1e-6


@pytest.mark.parametrize(("cell", "isa"), KERNELS)
def test_a_row_does_not_depend_on_the_batch_or_the_threads(cell: str, isa: str | None) -> None:
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((45, 224)), [rng.standard_normal((112, 224))]
    one, three = WorkerPool(1), WorkerPool(3)
    (whole,) = _multiply(one, cell, isa, x, w)
    for first, last in ((0, 1), (7, 9), (20, 45)):
        (part,) = _multiply(three, cell, isa, x[first:last], w)
        assert np.array_equal(part, whole[first:last])
    one.close()
    three.close()


def test_no_rows_is_no_work(two_threads: WorkerPool) -> None:
    for cell, isa in KERNELS:
        if isa is None or isa in host_isas():
            (out,) = _multiply(two_threads, cell, isa, np.zeros((0, 32)), [np.ones((16, 32))])
            assert out.shape == (0, 16)


def test_an_instruction_set_the_host_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.device.dispatch.host_isas", lambda: ("portable",))
    with pytest.raises(DeviceError, match="this host has no amx; it has portable"):
        kernel_set("bfloat16", "amx")
    assert kernel_set("bfloat16").isa == "portable"
