"""The host's ceilings, measured by the engine's threads: memory reads, and matrix products with operands in cache."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from ..config.formats import Isa, WeightFormat
from ..device.hbm import Hbm
from ..device.layout import is_grouped, round_up
from ..host.address_map import ADDRESSES
from ..kernels.bandwidth_probe import ReadOperands, read_memory
from ..kernels.dispatch import linear_kernels
from ..kernels.isa.jit import Kernel
from ..kernels.matmul import probe as probes
from ..kernels.program import Program
from ..kernels.workers import WorkerPool

PROBE_BYTES = 512 << 20  # larger than the cache that one tenant of a shared host gets
K_TILES = 4  # 16 KiB of operands for the largest block: half of the smallest first-level cache
RUN_S = 0.02  # of one measurement: longer than a launch, shorter than bursts of other load on a shared host


class BandwidthProbe:
    """Measures memory-read bandwidth, the ceiling of every decode step. Make one, then call `measure` between runs."""

    def __init__(self, pool: WorkerPool, num_bytes: int = PROBE_BYTES) -> None:
        self._pool, self._num_bytes = pool, num_bytes
        memory = Hbm(num_bytes).allocate(num_bytes)
        memory.bytes[::4096] = 1  # make every page real
        sums = np.zeros(16 * pool.num_threads, np.float32)
        ADDRESSES.register("sums", sums)
        self._program = Program("read probe", (memory, sums))
        operands = ReadOperands(memory.address, num_bytes // 64, sums.ctypes.data)
        self._program.add("read", read_memory, [operands])

    def measure(self, repeats: int = 5) -> float:
        """Median GB/s (1e9 bytes) over `repeats` passes."""
        rates = []
        for _ in range(repeats):
            begin = time.perf_counter()
            self._pool.run(self._program, 0)
            rates.append(self._num_bytes / (time.perf_counter() - begin) / 1e9)
        return statistics.median(rates)


@dataclass(frozen=True, slots=True)
class ProductUnit:
    """The unit that multiplies a format's matrices on this host."""

    name: str  # such as int8 amx
    kernel: Kernel
    block: probes.Block
    operations: int  # of one word by one column: two for each multiplication and addition

    def operations_per_round(self, k_tiles: int) -> int:
        return self.block.rows * self.block.columns * 16 * k_tiles * self.operations


_FLOAT32: dict[Isa, ProductUnit] = {
    "avx512": ProductUnit("float32 avx512", probes.products_f32_wide, probes.WIDE, 2),
    "avx2": ProductUnit("float32 avx2", probes.products_f32_narrow, probes.NARROW, 2),
    "neon-dot": ProductUnit("float32 neon", probes.products_f32_narrow, probes.NARROW, 2),
    "portable": ProductUnit("float32 portable", probes.products_f32_narrow, probes.NARROW, 2),
}
_BFLOAT16: dict[Isa, ProductUnit] = {  # float32's unit on hosts without one for bfloat16
    "amx": ProductUnit("bfloat16 amx", probes.products_bf16_amx, probes.TILES, 4),
    "avx512-bf16": ProductUnit("bfloat16 avx512-bf16", probes.products_bf16_avx512_bf16, probes.WIDE, 4),
    "neon-i8mm": ProductUnit("bfloat16 neon-i8mm", probes.products_bf16_neon_i8mm, probes.PAIRED, 4),
    **_FLOAT32,
}
_INT8: dict[Isa, ProductUnit] = {  # int16 products on hosts whose int8 products are not exact
    "amx": ProductUnit("int8 amx", probes.products_i8_amx, probes.TILES, 8),
    "avx512-vnni": ProductUnit("int8 avx512-vnni", probes.products_i8_avx512_vnni, probes.WIDE, 8),
    "avx512": ProductUnit("int16 avx512", probes.products_i16_avx512, probes.WIDE, 4),
    "avx2-vnni": ProductUnit("int8 avx2-vnni", probes.products_i8_avx2_vnni, probes.NARROW, 8),
    "avx2": ProductUnit("int16 avx2", probes.products_i16_avx2, probes.NARROW, 4),
    "neon-i8mm": ProductUnit("int8 neon-i8mm", probes.products_i8_neon_i8mm, probes.PAIRED, 8),
    "neon-dot": ProductUnit("int8 neon-dot", probes.products_i8_neon_dot, probes.NARROW, 8),
    "portable": ProductUnit("int8 portable", probes.products_i8_narrow, probes.NARROW, 8),
}
_GROUPED = {**_INT8, "avx2": ProductUnit("int8 avx2", probes.products_u8_avx2, probes.NARROW, 8)}


def product_unit(weights: WeightFormat, isa: Isa | None = None) -> ProductUnit:
    """Return the unit that computes matrices of this format.

    A storage-only format uses the unit of bfloat16 if its kernels widen to bfloat16, else that of float32.
    Raises DeviceError when the host lacks `isa`.
    """
    chosen = linear_kernels(weights, isa).isa
    if is_grouped(weights) and weights != "mxfp8":
        return _GROUPED[chosen]
    if weights.startswith("int8") and weights != "int8-weight-only":
        return _INT8[chosen]
    return _FLOAT32[chosen] if weights == "float32" else _BFLOAT16[chosen]


class ProductProbe:
    """Measures matrix products. Make one, then call `measure` between runs."""

    def __init__(self, pool: WorkerPool, unit: ProductUnit, k_tiles: int = K_TILES) -> None:
        self._pool, self.unit = pool, unit
        stride = round_up(unit.block.num_bytes(k_tiles), 4096) + 64  # no two workers on one page or set
        self.memory = Hbm(stride * pool.num_threads).allocate(stride * pool.num_threads)
        self._operands = probes.ProductOperands(self.memory.address, stride, k_tiles, 1)
        self._per_round = pool.num_threads * unit.operations_per_round(k_tiles)
        self._rounds = 1
        self._rounds = max(1, int(RUN_S / min(self.seconds(64) / 64 for _ in range(5))))

    def seconds(self, rounds: int) -> float:
        """Seconds of `rounds` rounds on every thread at once."""
        program = Program("product probe", self.memory)
        program.add("products", self.unit.kernel, [self._operands._replace(rounds=rounds)])
        _ = program.address  # compiled before the clock starts
        begin = time.perf_counter()
        self._pool.run(program, 0)
        return time.perf_counter() - begin

    def measure(self, repeats: int = 5) -> float:
        """Median TOPS (1e12 operations a second) of all threads together."""
        rates = [self._rounds * self._per_round / self.seconds(self._rounds) / 1e12 for _ in range(repeats)]
        return statistics.median(rates)
