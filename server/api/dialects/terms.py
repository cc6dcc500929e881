"""Errors of a chat request that was made from another dialect's request, in the terms of that dialect."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...errors import InvalidRequest

Names = Sequence[tuple[str, str]]  # pairs: a pattern of chat's name, and the dialect's name


@dataclass(slots=True)
class Terms:
    """Names of a dialect's fields. `messages` and `tools` name the field that each of chat's was made from."""

    names: Names
    tool_names: Names  # fields of a tool, without the tool's own name
    messages: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Rename the fields in errors of the chat request to those that the client has sent."""
        try:
            yield
        except InvalidRequest as error:
            raise self.own(error) from error

    def own(self, error: InvalidRequest) -> InvalidRequest:
        """Return the error with the names of the fields that the client has sent."""
        if error.param is None:
            return error
        param = self._param(error.param)
        return InvalidRequest(error.message.replace(error.param, param), param, error.code)

    def _param(self, param: str) -> str:
        if found := re.fullmatch(r"messages\[(\d+)\](\.role|\.content.*)?.*", param):
            return self.messages[int(found[1])] + (found[2] or "")
        if found := re.fullmatch(r"tools\[(\d+)\](.*)", param):
            return self.tools[int(found[1])] + _renamed(found[2], self.tool_names)
        return _renamed(param, self.names)


def _renamed(param: str, names: Names) -> str:
    for pattern, here in names:
        param = re.sub(rf"^{pattern}(?=[.\[]|$)", here, param)
    return param
