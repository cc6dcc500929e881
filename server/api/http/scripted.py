"""Output that a test has written for one request. An addition sets it as `scripted` of the request's state."""

from __future__ import annotations

from typing import Any

import msgspec


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of one of the tools that the request offers."""

    name: str
    arguments: dict[str, Any] = {}


class Scripted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole output of each choice: text, then calls."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
