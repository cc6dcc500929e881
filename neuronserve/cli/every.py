"""Settings of all commands. They share one environment, so a variable may belong to another command."""

from collections.abc import Mapping

from neuronserve.cli.serve import is_installed, serve_settings
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.base import ENV_PREFIX, Settings
from neuronserve.server.settings.bench import AccuracySettings, LatencySettings, ThroughputSettings
from neuronserve.server.settings.chat import ChatSettings, LaunchSettings
from neuronserve.server.settings.compile import CompileSettings
from neuronserve.server.settings.doctor import DoctorSettings
from neuronserve.server.settings.embed import EmbedSettings
from neuronserve.server.settings.models import ModelsSettings
from neuronserve.server.settings.monitor import LsSettings, MonitorSettings, TopSettings
from neuronserve.server.settings.pipeline import StageSettings
from neuronserve.server.settings.route import RouteSettings
from neuronserve.server.settings.run_batch import RunBatchSettings
from neuronserve.server.settings.sources import names

BY_COMMAND: dict[str, type[Settings]] = {
    "serve": serve_settings(),
    "route": RouteSettings,
    "run-batch": RunBatchSettings,
    "bench latency": LatencySettings,
    "bench throughput": ThroughputSettings,
    "bench accuracy": AccuracySettings,
    "compile": CompileSettings,
    "embed": EmbedSettings,
    "models": ModelsSettings,
    "chat": ChatSettings,
    "launch": LaunchSettings,
    "ls": LsSettings,
    "top": TopSettings,
    "monitor": MonitorSettings,
    "stage": StageSettings,
    "doctor": DoctorSettings,
}
if is_installed("planner"):
    from neuronserve.planner.settings.calibrate import CalibrateSettings
    from neuronserve.planner.settings.observe import ObserveSettings
    from neuronserve.planner.settings.plan import PlanSettings
    from neuronserve.planner.settings.simulate import SimulateSettings
    from neuronserve.planner.settings.validate import ValidateSettings

    BY_COMMAND |= {"plan": PlanSettings, "simulate": SimulateSettings}
    BY_COMMAND |= {"calibrate": CalibrateSettings, "validate": ValidateSettings, "observe": ObserveSettings}
if is_installed("testkit"):
    from neuronserve.testkit.settings.cassette import RecordSettings, ReplaySettings
    from neuronserve.testkit.settings.survive import SurviveSettings

    BY_COMMAND |= {"record": RecordSettings, "replay": ReplaySettings, "survive": SurviveSettings}
KINDS = tuple(BY_COMMAND.values())


def refuse_misspelt(suspects: Mapping[str, str]) -> None:
    """Raise SettingsError for the first of `suspects` (name: similar setting) that no command knows."""
    known = {name for kind in KINDS for name in names(kind)}
    for name, near in suspects.items():
        if name not in known:
            variable, meant = (ENV_PREFIX + each.upper() for each in (name, near))
            raise SettingsError(f"{variable}: there is no such setting (did you mean {meant}?)")
