"""Lazy methods of dataclasses: each is compiled when it is first called.

Python compiles the methods of a dataclass from text: six for a frozen one, a fifth of a millisecond each. A server has
four hundred such classes and calls a tenth of the methods; compiling all of them took a fifth of its start.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any


def make_methods_late() -> None:
    """Make the methods of dataclasses lazy from now on, in versions of Python that compile them one by one."""
    if sys.version_info < (3, 13):
        dataclasses._create_fn = _late(dataclasses._create_fn)  # type: ignore[attr-defined]


def _late(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `create`, which makes a method from its name and text, so that the first call makes it."""

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
