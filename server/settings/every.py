"""The settings of all commands together, which share one environment: a variable may be another command's setting."""

from __future__ import annotations

from collections.abc import Mapping

from server.errors import SettingsError
from server.settings.base import ENV_PREFIX, Settings
from server.settings.bench import AccuracySettings, LatencySettings, ThroughputSettings
from server.settings.cassette import RecordSettings, ReplaySettings
from server.settings.compile import CompileSettings
from server.settings.embed import EmbedSettings
from server.settings.models import ModelsSettings
from server.settings.monitor import LsSettings, MonitorSettings, TopSettings
from server.settings.observe import ObserveSettings
from server.settings.planner import CalibrateSettings, PlanSettings, SimulateSettings
from server.settings.run_batch import RunBatchSettings
from server.settings.serve import ServeSettings
from server.settings.sources import names
from server.settings.survive import SurviveSettings

KINDS: tuple[type[Settings], ...] = (
    ServeSettings,
    RunBatchSettings,
    LatencySettings,
    ThroughputSettings,
    AccuracySettings,
    PlanSettings,
    SimulateSettings,
    CompileSettings,
    EmbedSettings,
    ModelsSettings,
    CalibrateSettings,
    ObserveSettings,
    LsSettings,
    TopSettings,
    MonitorSettings,
    RecordSettings,
    ReplaySettings,
    SurviveSettings,
)


def refuse_misspelt(suspects: Mapping[str, str]) -> None:
    """Raises SettingsError for the first of `suspects` (a name, and the setting it is near) that no command knows."""
    known = {name for kind in KINDS for name in names(kind)}
    for name, near in suspects.items():
        if name not in known:
            variable, meant = (ENV_PREFIX + each.upper() for each in (name, near))
            raise SettingsError(f"{variable}: there is no such setting (did you mean {meant}?)")
