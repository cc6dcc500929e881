"""Calls of LLVM's intrinsics: the one place where a kernel names an instruction that not every CPU has.

Callers write `instruction.call`, so that tests can replace it by code that any host runs (tests/kernels/emulated.py).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils


def call(builder: Any, name: str, result: Any, *values: Any) -> Any:
    """Emit a call of the intrinsic `name` that returns a `result`."""
    function_type = ir.FunctionType(result, [v.type for v in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), values)
