"""The tile unit (AMX) of recent x86 hosts: one intrinsic per tile number, and the permission to use it.

Tile numbers are immediates of the instructions, so each numbered form is an intrinsic of its own. The configuration
of the tiles belongs to a thread: each kernel loads it when it begins and releases the tiles when it ends.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import instruction
from .access import READ, WRITE, stack_memory, tile_pointer
from .memory import NOTHING, emitted

TILE_ROWS = 16
TILE_BYTES = 1024

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA, _SYS_ARCH_PRCTL = 0x1023, 18, 158


def request_permission() -> bool:
    """Ask the operating system for the tile registers, for the whole process; False if it refuses."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


def _call(builder: Any, name: str, *values: Any) -> Any:
    instruction.call(builder, name, ir.VoidType(), *values)
    return NOTHING


def _number(tile: int) -> Any:
    return ir.Constant(_I8, tile)


def _mover(name: str, kind: int, tile: int) -> Any:
    @emitted(types.void, types.int64, types.int64)
    def move_tile(builder: Any, address: Any, stride: Any) -> Any:
        """Load the tile from rows of 64 bytes, `stride` bytes apart, or store it there."""
        return _call(builder, name, _number(tile), *tile_pointer(builder, tile, address, stride, kind))

    return move_tile


def _of_tiles(name: str, *tiles: int) -> Any:
    @emitted(types.void)
    def of_tiles(builder: Any) -> Any:
        """Set the tile to zero, or add the product of the second and the third one to it."""
        return _call(builder, name, *map(_number, tiles))

    return of_tiles


def dot_bf16(c: int, a: int, b: int) -> Any:
    """Return the intrinsic for tile c += tile a (bf16 pairs) times tile b (bf16 pairs), accumulated in float32."""
    return _of_tiles("llvm.x86.tdpbf16ps", c, a, b)


def dot_i8(c: int, a: int, b: int) -> Any:
    """Return the intrinsic for tile c += tile a (int8 by fours) times tile b (int8 by fours), accumulated in int32."""
    return _of_tiles("llvm.x86.tdpbssd", c, a, b)


@emitted(types.int64)
def stack_tiles(builder: Any) -> Any:
    """Return the address of eight tiles on the caller's stack, aligned to a cache line."""
    block = cgutils.alloca_once(builder, ir.ArrayType(_I8, 8 * TILE_BYTES))
    block.align = 64
    return stack_memory(builder, builder.ptrtoint(block, _I64), 8 * TILE_BYTES)


load0, load1, load2, load3, load4, load5, load6, load7 = (_mover("llvm.x86.tileloadd64", READ, i) for i in range(8))
store0, store1, store2, store3 = (_mover("llvm.x86.tilestored64", WRITE, i) for i in range(4))
zero0, zero1, zero2, zero3 = (_of_tiles("llvm.x86.tilezero", i) for i in range(4))


@emitted(types.void, types.int64)
def configure(builder: Any, rows: Any) -> Any:
    """Configure palette 1: tiles 0-5 (accumulators, activations) of `rows` rows, 6-7 (weights) of 16; 64 bytes wide."""
    block = cgutils.alloca_once(builder, ir.ArrayType(_I8, 64))
    builder.store(ir.Constant(ir.ArrayType(_I8, 64), None), block)
    base = builder.bitcast(block, _I8.as_pointer())

    def put(offset: int, value: Any) -> None:
        builder.store(value, builder.gep(base, [ir.Constant(_I64, offset)]))

    put(0, ir.Constant(_I8, 1))
    for tile in range(8):
        put(16 + 2 * tile, ir.Constant(_I8, 64))
        put(48 + tile, builder.trunc(rows, _I8) if tile < 6 else ir.Constant(_I8, TILE_ROWS))
    return _call(builder, "llvm.x86.ldtilecfg", base)


@emitted(types.void)
def release(builder: Any) -> Any:
    """Release the tiles."""
    return _call(builder, "llvm.x86.tilerelease")
