"""The settings of `neuronserve record` and `neuronserve replay`."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import CliPositionalArg, CliToggleFlag

from ...server.settings.base import File, Settings
from ...server.settings.logs import log_to_stderr
from .faults import FaultSettings


class _CassetteSettings(Settings):
    cassette: CliPositionalArg[Path] = Field(description="file of recorded answers, JSON lines")
    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int = Field(8000, ge=0, le=65535, description="TCP port to listen on; 0 picks a free one")
    ready_file: File = Field(None, description="file with the server's address as JSON, while it is ready")

    def put_in_force(self) -> None:
        """Apply the settings, and log to stderr."""
        super().put_in_force()
        log_to_stderr("info")


class RecordSettings(_CassetteSettings):
    """Settings of `neuronserve record`."""

    cassette: CliPositionalArg[Path] = Field(
        description="new file: JSON lines for replay, or a script for serve --script if it ends in .yaml"
    )
    upstream: str = Field(description="address of the endpoint to record, such as https://api.openai.com")
    append: CliToggleFlag[bool] = Field(False, description="add to an existing cassette")

    @field_validator("upstream")
    @classmethod
    def _is_address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
            raise ValueError("must look like https://HOST:PORT, without a key")
        return value


class ReplaySettings(_CassetteSettings, FaultSettings):
    """Settings of `neuronserve replay`."""

    timings: CliToggleFlag[bool] = Field(False, description="send chunks at their recorded times (default: at once)")
