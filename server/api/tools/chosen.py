"""The parsers of calls and reasoning that are in use: those that the settings name, else those of the chat template."""

from __future__ import annotations

from neuronserve.server.api.config import ApiConfig
from neuronserve.server.text.parsers.formats import ReasoningParserName, ToolParserName, parsers_for


def chosen_parsers(config: ApiConfig, template: str | None) -> tuple[ToolParserName, ReasoningParserName]:
    """Names of the parsers of a conversation that `template` renders."""
    tools, reasoning = parsers_for(template)
    return (
        tools if config.tool_call_parser == "auto" else config.tool_call_parser,
        reasoning if config.reasoning_parser == "auto" else config.reasoning_parser,
    )
