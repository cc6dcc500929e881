"""The settings of `neuronserve chat` and `neuronserve launch`."""

from typing import Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg, CliToggleFlag

from ..chat.conversation import ChatSampling
from .base import Settings, slice_of


class ChatSettings(Settings):
    """Settings of `neuronserve chat`."""

    url: str = Field("http://127.0.0.1:8000", description="address of a server with OpenAI's API")
    model: str | None = Field(None, min_length=1, description="model (default: the first that the server lists)")
    api_key: str | None = Field(None, min_length=1, description="key to send; better given as a variable than a flag")
    system: str = Field("", description="system prompt")
    temperature: float | None = Field(None, ge=0, le=2, description="sampling temperature (default: the server's)")
    top_p: float | None = Field(None, gt=0, le=1, description="sampling top_p (default: the server's)")
    max_tokens: int | None = Field(None, ge=1, description="most tokens of an answer (default: the server's)")
    seed: int | None = Field(None, description="seed of sampling (default: the server's)")
    timeout: float = Field(120, gt=0, le=86400, description="seconds without a token after which an answer is given up")

    @property
    def sampling(self) -> ChatSampling:
        """Sampling parameters to send with the messages."""
        return slice_of(ChatSampling, self)


class LaunchSettings(Settings):
    """Settings of `neuronserve launch`; arguments for the agent follow after `--`."""

    agent: CliPositionalArg[Literal["claude", "codex"]] = Field(description="coding agent to start")
    url: str = Field("http://127.0.0.1:8000", description="address of the server")
    model: str | None = Field(None, min_length=1, description="model (default: the first that the server lists)")
    api_key: str | None = Field(None, min_length=1, description="key to send; better given as a variable than a flag")
    dry_run: CliToggleFlag[bool] = Field(False, description="print the command with its variables, and start nothing")
