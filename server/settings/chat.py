"""The settings of `neuronserve chat`."""

from pydantic import Field

from neuronserve.server.chat.conversation import ChatSampling
from neuronserve.server.settings.base import Settings, slice_of


class ChatSettings(Settings):
    """Settings of `neuronserve chat`."""

    url: str = Field("http://127.0.0.1:8000", description="address of the server, or of any with OpenAI's API")
    model: str | None = Field(None, min_length=1, description="model to ask (default: the first that it lists)")
    api_key: str | None = Field(None, min_length=1, description="key to send; better given as a variable than a flag")
    system: str = Field("", description="system prompt")
    temperature: float | None = Field(None, ge=0, le=2, description="how freely tokens are drawn (default: its own)")
    top_p: float | None = Field(None, gt=0, le=1, description="share of the likeliest tokens (default: its own)")
    max_tokens: int | None = Field(None, ge=1, description="most tokens of an answer (default: its own)")
    seed: int | None = Field(None, description="of the draws (default: its own)")
    timeout: float = Field(120, gt=0, le=86400, description="seconds without a word after which an answer is given up")

    @property
    def sampling(self) -> ChatSampling:
        """What is sent beside the messages."""
        return slice_of(ChatSampling, self)
