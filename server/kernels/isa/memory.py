"""Memory by address: scalar loads and stores, atomics, prefetch and calls through a pointer.

An emulated core addresses all data by int64 byte addresses, as a device program does. There are no arrays and, except
in checked mode (access.py), no bounds. The code that builds the operands (server/kernels/program.py) defines what the
addresses mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import instruction
from .access import READ, UPDATE, WRITE, pointer, stack_memory

_F32, _I8, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)

NOTHING = ir.Constant(_I8.as_pointer(), None)  # the value an emitter returns for types.void


def emitted(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of fixed types from a function `(builder, *values) -> value`."""

    def wrap(emit: Callable[..., Any]) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return emit(builder, *values)

        def typer(_typing_context: Any, *_types: Any) -> Any:
            return result(*arguments), codegen

        # intrinsic() reads the parameter names, so they must exist.
        names = ", ".join(f"a{i}" for i in range(len(arguments)))
        scope = {"typer": typer}
        exec(f"def {emit.__name__}(typing_context, {names}):\n    return typer(typing_context, {names})\n", scope)
        function = scope[emit.__name__]
        function.__doc__ = emit.__doc__
        return intrinsic(function)

    return wrap


def _load(kind: Any, align: int, result: Any = types.int64, convert: str = "", to: Any = _I64) -> Any:
    @emitted(result, types.int64)
    def load(builder: Any, address: Any) -> Any:
        """Load one value, widened or converted to the result."""
        value = builder.load(pointer(builder, address, kind, READ), align=align)
        return getattr(builder, convert)(value, to) if convert else value

    return load


def _store(kind: Any, align: int, value: Any) -> Any:
    @emitted(types.void, types.int64, value)
    def store(builder: Any, address: Any, value: Any) -> Any:
        """Store one value."""
        builder.store(value, pointer(builder, address, kind, WRITE), align=align)
        return NOTHING

    return store


def _copy(kind: Any, align: int) -> Any:
    @emitted(types.void, types.int64, types.int64)
    def copy(builder: Any, source: Any, target: Any) -> Any:
        """Copy one value."""
        value = builder.load(pointer(builder, source, kind, READ), align=align)
        builder.store(value, pointer(builder, target, kind, WRITE), align=align)
        return NOTHING

    return copy


load_i64, load_i32, load_u8 = _load(_I64, 8), _load(_I32, 4, convert="sext"), _load(_I8, 1, convert="zext")
load_f32, load_i8 = _load(_F32, 4, types.float32), _load(_I8, 1, types.float32, "sitofp", _F32)
store_i64, store_f32 = _store(_I64, 8, types.int64), _store(_F32, 4, types.float32)
copy_4_bytes, copy_2_bytes, copy_1_byte = _copy(_I32, 2), _copy(_I16, 2), _copy(_I8, 1)


@emitted(types.int64, types.int64)
def hidden(builder: Any, value: Any) -> Any:
    """Return the value hidden from LLVM, which then does not unroll a loop of that many turns."""
    return builder.asm(ir.FunctionType(_I64, [_I64]), "", "=r,0", (value,), False)


@emitted(types.void, types.int64, types.float32)
def store_i32(builder: Any, address: Any, value: Any) -> Any:
    """Store a whole number as an int32."""
    builder.store(builder.fptosi(value, _I32), pointer(builder, address, _I32, WRITE), align=4)
    return NOTHING


@emitted(types.float32, types.int64)
def load_bf16(builder: Any, address: Any) -> Any:
    """Load a bfloat16, exact in float32."""
    half = builder.zext(builder.load(pointer(builder, address, _I16, READ), align=2), _I32)
    return builder.bitcast(builder.shl(half, ir.Constant(_I32, 16)), _F32)


@emitted(types.float32, types.int64)
def load_f16(builder: Any, address: Any) -> Any:
    """Load a finite float16, exact in float32: its bits at float32's places, times 2 ** 112."""
    half = builder.sext(builder.load(pointer(builder, address, _I16, READ), align=2), _I32)
    bits = builder.and_(builder.shl(half, ir.Constant(_I32, 13)), ir.Constant(_I32, 0x8FFFE000))
    return builder.fmul(builder.bitcast(bits, _F32), ir.Constant(_F32, 2.0**112))


def _load_float8(mantissa_bits: int, bias: int) -> Callable[[Any, Any], Any]:
    def load(builder: Any, address: Any) -> Any:
        """Load a float8; codes below the smallest normal number are zero."""
        x = builder.zext(builder.load(pointer(builder, address, _I8, READ), align=1), _I32)
        sign = builder.shl(builder.and_(x, ir.Constant(_I32, 0x80)), ir.Constant(_I32, 24))
        magnitude = builder.shl(builder.and_(x, ir.Constant(_I32, 0x7F)), ir.Constant(_I32, 23 - mantissa_bits))
        is_normal = builder.icmp_unsigned(">=", magnitude, ir.Constant(_I32, 1 << 23))
        number = builder.or_(sign, builder.add(magnitude, ir.Constant(_I32, (127 - bias) << 23)))
        return builder.bitcast(builder.select(is_normal, number, ir.Constant(_I32, 0)), _F32)

    return load


load_e4m3 = emitted(types.float32, types.int64)(_load_float8(mantissa_bits=3, bias=7))
load_e5m2 = emitted(types.float32, types.int64)(_load_float8(mantissa_bits=2, bias=15))


@emitted(types.float32, types.int64)
def load_e4m3fn(builder: Any, address: Any) -> Any:
    """Load a float8 e4m3, including subnormal numbers: its bits at float32's places, times 2 ** 120."""
    wide = builder.shl(
        builder.sext(builder.load(pointer(builder, address, _I8, READ), align=1), _I32), ir.Constant(_I32, 20)
    )
    bits = builder.and_(wide, ir.Constant(_I32, 0x87F00000))
    return builder.fmul(builder.bitcast(bits, _F32), ir.Constant(_F32, 2.0**120))


@emitted(types.int64, types.int64, types.int64)
def fetch_add(builder: Any, address: Any, amount: Any) -> Any:
    """Add to an int64 that threads share, and return the value before. Sequentially consistent."""
    return builder.atomic_rmw("add", pointer(builder, address, _I64, UPDATE), amount, "seq_cst")


@emitted(types.int64, types.int64, types.int64)
def exchange(builder: Any, address: Any, value: Any) -> Any:
    """Replace an int64 that threads share, and return the value before. Sequentially consistent."""
    return builder.atomic_rmw("xchg", pointer(builder, address, _I64, UPDATE), value, "seq_cst")


@emitted(types.int64, types.int64)
def load_acquire(builder: Any, address: Any) -> Any:
    """Load an int64 that another thread publishes."""
    return builder.load_atomic(pointer(builder, address, _I64, READ), "acquire", 8)


@emitted(types.void, types.int64, types.int64)
def store_release(builder: Any, address: Any, value: Any) -> Any:
    """Publish an int64 to other threads."""
    builder.store_atomic(value, pointer(builder, address, _I64, WRITE), "release", 8)
    return NOTHING


def _prefetch(builder: Any, address: Any, is_write: int, level: int = 1) -> Any:
    access, keep, data = ir.Constant(_I32, is_write), ir.Constant(_I32, 4 - level), ir.Constant(_I32, 1)
    line = builder.inttoptr(address, _I8.as_pointer())
    instruction.call(builder, "llvm.prefetch.p0", ir.VoidType(), line, access, keep, data)
    return NOTHING


@emitted(types.void, types.int64)
def prefetch(builder: Any, address: Any) -> Any:
    """Prefetch the cache line at `address` for reading."""
    return _prefetch(builder, address, 0)


@emitted(types.void, types.int64)
def prefetch_to_l2(builder: Any, address: Any) -> Any:
    """Prefetch the cache line at `address` to the second-level cache."""
    return _prefetch(builder, address, 0, level=2)


@emitted(types.void, types.int64)
def prefetch_to_write(builder: Any, address: Any) -> Any:
    """Prefetch the cache line at `address` for writing."""
    return _prefetch(builder, address, 1)


def _call(builder: Any, address: Any, result: Any, arguments: Sequence[Any]) -> Any:
    function_type = ir.FunctionType(result, [_I64] * len(arguments))
    return builder.call(builder.inttoptr(address, function_type.as_pointer()), arguments)


@emitted(types.void, types.int64, types.int64, types.int64, types.int64, types.int64, types.int64)
def call_kernel(builder: Any, kernel: Any, *arguments: Any) -> Any:
    """Call the kernel at an address with (operands, cores, step, worker, workers)."""
    _call(builder, kernel, ir.VoidType(), arguments)
    return NOTHING


@emitted(types.int64, types.int64, types.int64, types.int64, types.int64)
def call_function(builder: Any, function: Any, *arguments: Any) -> Any:
    """Call the C function at an address, which takes up to three arguments, and return its int."""
    return builder.sext(_call(builder, function, ir.IntType(32), arguments), _I64)


def stack_lines(count: int) -> Any:
    """Return the intrinsic for the address of `count` aligned cache lines on the caller's stack, always the same."""

    @emitted(types.int64)
    def lines(builder: Any) -> Any:
        """Return the lines' address."""
        block = cgutils.alloca_once(builder, ir.ArrayType(_I8, 64 * count))
        block.align = 64
        return stack_memory(builder, builder.ptrtoint(block, _I64), 64 * count)

    return lines
