"""What Numba does again and again while it compiles, though kernels need it once or never.

Each of these changes how long that takes, and nothing of what comes out of it (docs/internals/kernels.md).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm_ir
from numba.core import event, ir
from numba.core.base import BaseContext
from numba.core.types.functions import BaseFunction

# What holds no variables.
_LEAVES = frozenset({str, int, float, bool, type(None), ir.Loc, ir.Arg, ir.Const, ir.Global, ir.FreeVar})


def take_shortcuts() -> None:
    """Have this process compile so from now on; to be called once."""
    _remember_calls()
    _remember_sizes()
    ir.Inst._rec_list_vars = _variables
    # Timers of the compiler, one for each function that is being compiled, hear of each call of LLVM. None is read.
    event.start_event = event.end_event = _nothing


def _remember_calls() -> None:
    """Resolve a call of one of Numba's own functions once for each tuple of types.

    Numba asks every declaration of an operator, at each use, whether it takes such types: a dozen for an addition. What
    is said of types once is said of them always, in kernels, which have no type that is completed by a later use.
    """
    resolve = BaseFunction.get_call_type

    def get_call_type(function: Any, context: Any, arguments: Any, keywords: Any) -> Any:
        if keywords:
            return resolve(function, context, arguments, keywords)
        known = vars(function).setdefault("known_calls", {})
        if (context, arguments) not in known:
            known[context, arguments] = resolve(function, context, arguments, keywords)
        return known[context, arguments]

    BaseFunction.get_call_type = get_call_type  # type: ignore[method-assign, assignment]


def _remember_sizes() -> None:
    """Ask LLVM for the size of a type once: each time it parses a module with a variable of that type."""
    ask, known = BaseContext.get_abi_sizeof, dict[tuple[Any, str], int]()

    def get_abi_sizeof(context: Any, kind: Any) -> int:
        if isinstance(kind, llvm_ir.IdentifiedStructType):  # whose name says nothing of its size
            return int(ask(context, kind))
        key = context.target_data, str(kind)
        if key not in known:
            known[key] = int(ask(context, kind))
        return known[key]

    BaseContext.get_abi_sizeof = get_abi_sizeof


def _variables(instruction: Any, value: Any) -> list[Any]:
    """Variables in what an instruction of Numba's IR holds: what Numba asks of every field, by what most fields are."""
    if isinstance(value, ir.Var):
        return [value]
    if isinstance(value, ir.Inst):
        return list(value.list_vars())
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    found: list[Any] = []
    for each in value:
        kind = type(each)
        if kind is ir.Var:
            found.append(each)
        elif kind not in _LEAVES:
            found.extend(_variables(instruction, each))
    return found


def _nothing(*arguments: object, **more: object) -> None:
    """Tell nobody."""
