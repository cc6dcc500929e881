"""Tools of /v1/responses as chat tools: functions, custom tools, and namespaces, which become part of names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ....errors import InvalidRequest
from ...errors import required, unsupported
from ...wire.responses import (
    ALLOWED_TOOLS,
    CUSTOM,
    FUNCTION,
    NAMESPACE,
    WEB_SEARCH,
    InnerTool,
    NamedTool,
    ResponseTool,
    ResponseToolChoice,
)

JOINT = "__"  # between a namespace and a name


@dataclass(slots=True)
class ChatTools:
    """Chat tools, the field of each, and by the name in chat its namespace and its own name."""

    chat: list[dict[str, Any]] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    names: dict[str, tuple[str | None, str]] = field(default_factory=dict)

    def add(self, tool: InnerTool, param: str, space: ResponseTool | None = None) -> None:
        """Add a function or a custom tool. Raises InvalidRequest for a tool of another type."""
        if tool.type not in (FUNCTION, CUSTOM):
            raise hosted(tool.type, f"{param}.type")
        name = required(tool.name, f"{param}.name")
        namespace = None if space is None else space.name
        description = tool.description
        if space is not None and space.description:
            description = f"{description or ''}\n({space.name}: {space.description})".lstrip()
        known: dict[str, Any] = {"name": chat_name(namespace, name), "description": description}
        if tool.type == CUSTOM:
            known["format"] = _format(tool)
        else:
            known |= {"parameters": tool.parameters, "strict": tool.strict}
        kept = {key: value for key, value in known.items() if value is not None}
        self.chat.append({"type": tool.type, tool.type: kept})
        self.params.append(param)
        self.names[known["name"]] = (namespace, name)

    def choice(self, choice: str | ResponseToolChoice | None) -> Any:
        """Return chat's `tool_choice`. Raises InvalidRequest for a tool that the server would run."""
        if choice is None or isinstance(choice, str):
            return choice
        if choice.type != ALLOWED_TOOLS:
            return self._named(choice, "tool_choice")
        named = [self._named(tool, f"tool_choice.tools[{index}]") for index, tool in enumerate(choice.tools or ())]
        return {"type": ALLOWED_TOOLS, "allowed_tools": {"mode": choice.mode, "tools": named}}

    def _named(self, tool: NamedTool | ResponseToolChoice, param: str) -> dict[str, Any]:
        if tool.type not in (FUNCTION, CUSTOM):
            raise hosted(tool.type, f"{param}.type")
        name = tool.name if tool.name is None else chat_name(tool.namespace, tool.name)
        if name not in self.names:  # the namespace may be left out if the name is unique
            found = [each for each, (_, inner) in self.names.items() if inner == name]
            name = found[0] if len(found) == 1 else name
        return {"type": tool.type, tool.type: {"name": name}}


def tools_of(tools: Sequence[ResponseTool] | None) -> ChatTools:
    """Return the tools that the prompt lists. Raises InvalidRequest for tools that the server would run.

    A web search without access to the web (`external_web_access` false) is left out: it could find nothing.
    """
    made = ChatTools()
    for index, tool in enumerate(tools or ()):
        param = f"tools[{index}]"
        if tool.type == NAMESPACE:
            if tool.name is None:
                raise InvalidRequest(f"{param}.name is required.", f"{param}.name")
            for inner, each in enumerate(tool.tools or ()):
                made.add(each, f"{param}.tools[{inner}]", tool)
        elif tool.tools is not None:
            raise InvalidRequest(f"{param}.tools: only the type {NAMESPACE!r} has tools.", f"{param}.tools")
        elif not (tool.type == WEB_SEARCH and tool.external_web_access is False):
            made.add(tool, param)
    return made


def chat_name(namespace: str | None, name: str) -> str:
    """Return the name of a tool in the prompt."""
    return name if namespace is None else f"{namespace}{JOINT}{name}"


def hosted(kind: str, param: str) -> InvalidRequest:
    """Return the refusal of a tool that the server would run."""
    but = " It is left out where external_web_access is false." if kind == WEB_SEARCH else ""
    return unsupported(
        param, f" is {kind[:80]!r}; this server runs no tools itself and offers functions and custom tools only.{but}"
    )


def _format(tool: InnerTool) -> dict[str, Any] | None:
    given = tool.format
    if given is None or given.type == "text":
        return None
    return {"type": "grammar", "grammar": {"syntax": given.syntax, "definition": given.definition}}
