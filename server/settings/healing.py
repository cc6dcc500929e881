"""Settings of what a server does when an engine dies or hangs."""

from pydantic import Field
from pydantic_settings import CliToggleFlag

from ..link.restarts import Healing
from .base import Settings

RESTART_WINDOW_S = 60.0  # in which restarts of an engine are counted


class HealingSettings(Settings):
    """How often, and how fast, an engine is replaced."""

    max_engine_restarts: int = Field(
        5, ge=0, le=1000, description="restarts of a dead engine or replica within a minute; 0 = never"
    )
    engine_hang_timeout: float = Field(
        10,
        ge=0,
        le=86400,
        description="seconds beyond a step's longest time after which a hanging engine is killed; 0 = never",
    )
    spare_engine: CliToggleFlag[bool] = Field(
        False, description="load a spare engine beside each engine; it takes over at once when that engine dies"
    )

    @property
    def healing(self) -> Healing:
        """The slice of the engines' clients."""
        return Healing(self.max_engine_restarts, RESTART_WINDOW_S, self.engine_hang_timeout or None, self.spare_engine)
