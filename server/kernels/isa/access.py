"""Pointers of addresses: every memory access of a kernel is emitted here.

In checked mode (server/kernels/checks.py) a function receives the address first and returns it, or the address of
harmless memory if the access is out of range. Otherwise only the pointer is emitted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from . import instruction

READ, WRITE, UPDATE = range(3)  # kinds of access; an update reads and writes in one step

# Symbols of the functions that checked kernels call; code from a cache finds them by name.
CHECK_SYMBOL = "neuronserve_checked_address"  # (address, bytes, kind) -> address
CHECK_ROWS_SYMBOL = "neuronserve_checked_rows"  # (address, stride, rows, kind) -> address, of rows of 64 bytes
STACK_SYMBOL = "neuronserve_stack_memory"  # (address, bytes) -> address

_I8, _I64 = ir.IntType(8), ir.IntType(64)
_emits_checks = ContextVar("emits_checks", default=False)


@contextlib.contextmanager
def checked(is_on: bool) -> Iterator[None]:
    """Compile with checks, or without, what this thread compiles in the block."""
    token = _emits_checks.set(is_on)
    try:
        yield
    finally:
        _emits_checks.reset(token)


def pointer(builder: Any, address: Any, to: Any, kind: int, num_bytes: Any = None) -> Any:
    """Return a pointer to a `to` at `address`, all of which, or the first `num_bytes`, is about to be accessed."""
    if _emits_checks.get():
        size = _number(_size(to)) if num_bytes is None else num_bytes
        address = _call(builder, CHECK_SYMBOL, address, size, _number(kind))
    return builder.inttoptr(address, to.as_pointer())


def tile_pointer(builder: Any, tile: int, address: Any, stride: Any, kind: int) -> tuple[Any, Any]:
    """Return pointer and stride of the 64-byte rows that a load or store of `tile` accesses, as configured."""
    if _emits_checks.get():
        rows = builder.zext(_configured_rows(builder, tile), _I64)
        given = _call(builder, CHECK_ROWS_SYMBOL, address, stride, rows, _number(kind))
        is_right = builder.icmp_unsigned("==", given, address)
        address, stride = given, builder.select(is_right, stride, _number(0))
    return builder.inttoptr(address, _I8.as_pointer()), stride


def stack_memory(builder: Any, address: Any, num_bytes: int) -> Any:
    """Return the address of memory on a kernel's own stack, which may be accessed from now on."""
    if _emits_checks.get():
        return _call(builder, STACK_SYMBOL, address, _number(num_bytes))
    return address


def _configured_rows(builder: Any, tile: int) -> Any:
    """Return the rows of a tile from the tile unit's configuration: bytes 48 to 55 are the rows of each tile."""
    block = cgutils.alloca_once(builder, ir.ArrayType(_I8, 64))
    base = builder.bitcast(block, _I8.as_pointer())
    instruction.call(builder, "llvm.x86.sttilecfg", ir.VoidType(), base)
    return builder.load(builder.gep(base, [_number(48 + tile)]))


def _call(builder: Any, symbol: str, *values: Any) -> Any:
    function_type = ir.FunctionType(_I64, [_I64] * len(values))
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, symbol), values)


def _number(value: int) -> Any:
    return ir.Constant(_I64, value)


def _size(of: Any) -> int:
    """Return the bytes of a scalar or vector."""
    if isinstance(of, ir.VectorType):
        return int(of.count) * _size(of.element)
    return 4 if isinstance(of, ir.FloatType) else int(of.width) // 8
