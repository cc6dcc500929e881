"""Coding agents and the variables and flags by which each finds a server: `neuronserve launch`."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ..errors import StartError
from .endpoint import ChatEndpoint

NO_KEY = "none"  # agents want some key


@dataclass(frozen=True, slots=True)
class Agent:
    """Variables and flags with places for `url` (without /v1), `model` and `key`."""

    variables: Mapping[str, str]
    flags: Sequence[str] = ()
    package: str = ""  # of npm


@dataclass(frozen=True, slots=True)
class Launch:
    """A command with the variables that it needs beside those of this process."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The command as a shell takes it."""
        names = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*names, shlex.join(self.command)])


AGENTS = {
    "claude": Agent(
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "{key}",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
        },
        package="@anthropic-ai/claude-code",
    ),
    "codex": Agent(
        {"OPENAI_API_KEY": "{key}"},
        (
            *("-c", 'model="{model}"', "-c", 'model_provider="neuronserve"', "-c", 'web_search="disabled"'),
            "-c",
            'model_providers.neuronserve={{name="neuronserve", base_url="{url}/v1", wire_api="responses", '
            'env_key="OPENAI_API_KEY"}}',
        ),
        "@openai/codex",
    ),
}


def launch_of(name: str, endpoint: ChatEndpoint, model: str | None, key: str | None, args: Sequence[str]) -> Launch:
    """Return the agent's command with `args` behind its flags; the default model is the server's first.

    Raises Unreachable or ChatError.
    """
    agent, known = AGENTS[name], endpoint.models()
    given = {"url": endpoint.url, "model": model or known[0], "key": key or NO_KEY}
    variables = {variable: value.format(**given) for variable, value in agent.variables.items()}
    return Launch([name, *(flag.format(**given) for flag in agent.flags), *args], variables)


def start(launch: Launch, environment: Mapping[str, str]) -> NoReturn:
    """Become the agent, with the launch's variables beside `environment`. Raises StartError if it is not installed."""
    name = launch.command[0]
    program = shutil.which(name, path=environment.get("PATH"))
    if program is None:
        raise StartError(
            f"{name} is not installed: npm install -g {AGENTS[name].package}, or --dry-run shows what it needs"
        )
    os.execve(program, launch.command, {**environment, **launch.variables})
