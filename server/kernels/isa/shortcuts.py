"""Shortcuts for work that Numba repeats while it compiles, though kernels need it once or never.

Each changes the time that compilation takes, and nothing of its result (docs/internals/kernels.md).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir as llvm_ir
from numba.core import event, ir
from numba.core.base import BaseContext
from numba.core.types.functions import BaseFunction

# Types that hold no variables.
_LEAVES = frozenset({str, int, float, bool, type(None), ir.Loc, ir.Arg, ir.Const, ir.Global, ir.FreeVar})


def take_shortcuts() -> None:
    """Make this process compile with the shortcuts from now on. Must be called once."""
    _remember_calls()
    _remember_sizes()
    ir.Inst._rec_list_vars = _variables
    # Every function that is being compiled has a timer that listens to LLVM's calls. None is read.
    event.start_event = event.end_event = _nothing


def _remember_calls() -> None:
    """Resolve a call of one of Numba's own functions once for each tuple of types.

    Numba asks every declaration of an operator, a dozen for an addition, whether it takes such types, at each use. In
    kernels the answer never changes, because no type is completed by a later use.
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
    """Ask LLVM for the size of a type once, not each time it parses a module with a variable of that type."""
    ask, known = BaseContext.get_abi_sizeof, dict[tuple[Any, str], int]()

    def get_abi_sizeof(context: Any, kind: Any) -> int:
        if isinstance(kind, llvm_ir.IdentifiedStructType):  # its name does not determine its size
            return int(ask(context, kind))
        key = context.target_data, str(kind)
        if key not in known:
            known[key] = int(ask(context, kind))
        return known[key]

    BaseContext.get_abi_sizeof = get_abi_sizeof


def _variables(instruction: Any, value: Any) -> list[Any]:
    """Return the variables in a field of an instruction of Numba's IR, testing the most frequent types first."""
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
    """Ignore an event."""
