"""Methods of dataclasses, made when they are first called.

A dataclass is text that Python compiles: six methods of a frozen one, a fifth of a millisecond each. A server has four
hundred such classes in its processes, and calls a tenth of the methods: most of the rest was a fifth of a start.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any


def make_methods_late() -> None:
    """Have dataclasses that are declared from now on make their methods so, in Pythons that make them one by one."""
    if sys.version_info < (3, 13):
        dataclasses._create_fn = _late(dataclasses._create_fn)  # type: ignore[attr-defined]


def _late(create: Callable[..., Any]) -> Callable[..., Any]:
    """`create`, which makes a method of its name and text, as a function that leaves that to the first call."""

    def create_late(name: str, *text: Any, **scope: Any) -> Callable[..., Any]:
        made: list[Callable[..., Any]] = []

        def method(self: Any, /, *arguments: Any, **named: Any) -> Any:
            if not made:
                function = create(name, *text, **scope)
                function.__qualname__ = method.__qualname__
                made.append(function)
                for kind in type(self).__mro__:
                    if vars(kind).get(name) is method:
                        setattr(kind, name, function)
            return made[0](self, *arguments, **named)

        method.__name__ = name
        return method

    return create_late
