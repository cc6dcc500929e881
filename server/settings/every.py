"""The settings of all commands together, which share one environment: a variable may be another command's setting."""

from collections.abc import Mapping

from server.errors import SettingsError
from server.settings.base import ENV_PREFIX, Settings
from server.settings.bench import AccuracySettings, LatencySettings, ThroughputSettings
from server.settings.cassette import RecordSettings, ReplaySettings
from server.settings.chat import ChatSettings
from server.settings.compile import CompileSettings
from server.settings.doctor import DoctorSettings
from server.settings.embed import EmbedSettings
from server.settings.models import ModelsSettings
from server.settings.monitor import LsSettings, MonitorSettings, TopSettings
from server.settings.observe import ObserveSettings
from server.settings.planner import CalibrateSettings, PlanSettings, SimulateSettings
from server.settings.run_batch import RunBatchSettings
from server.settings.serve import ServeSettings
from server.settings.sources import names
from server.settings.survive import SurviveSettings

BY_COMMAND: Mapping[str, type[Settings]] = {
    "serve": ServeSettings,
    "run-batch": RunBatchSettings,
    "bench latency": LatencySettings,
    "bench throughput": ThroughputSettings,
    "bench accuracy": AccuracySettings,
    "plan": PlanSettings,
    "simulate": SimulateSettings,
    "compile": CompileSettings,
    "embed": EmbedSettings,
    "models": ModelsSettings,
    "calibrate": CalibrateSettings,
    "observe": ObserveSettings,
    "chat": ChatSettings,
    "ls": LsSettings,
    "top": TopSettings,
    "monitor": MonitorSettings,
    "doctor": DoctorSettings,
    "record": RecordSettings,
    "replay": ReplaySettings,
    "survive": SurviveSettings,
}
KINDS = tuple(BY_COMMAND.values())


def refuse_misspelt(suspects: Mapping[str, str]) -> None:
    """Raises SettingsError for the first of `suspects` (a name, and the setting it is near) that no command knows."""
    known = {name for kind in KINDS for name in names(kind)}
    for name, near in suspects.items():
        if name not in known:
            variable, meant = (ENV_PREFIX + each.upper() for each in (name, near))
            raise SettingsError(f"{variable}: there is no such setting (did you mean {meant}?)")
