"""Errors of a chat request, in the terms of the request of another dialect that it was made from."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from neuronserve.server.errors import InvalidRequest

Names = Sequence[tuple[str, str]]  # each a pattern of chat's name, and the dialect's


@dataclass(slots=True)
class Terms:
    """Names of a dialect's fields. `messages` and `tools` have the field that each of the chat's comes from."""

    names: Names
    tool_names: Names  # of fields of a tool, behind its place
    messages: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """While the chat request is worked on: its errors have the names of what the client has sent."""
        try:
            yield
        except InvalidRequest as error:
            raise self.own(error) from error

    def own(self, error: InvalidRequest) -> InvalidRequest:
        """The error with the names of what the client has sent."""
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
