"""The coefficients of the cost model, with their meaning, and the file they are stored in. Fits nothing.

Each coefficient is one physical quantity, not a table of measurements; server/planner/calibrate/ finds them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import msgspec

from server.errors import SettingsError
from server.typed_json import JsonError, convert, decode

VERSION = 2

# What each coefficient is, and its unit. An efficiency is the share reached of the figure in the data sheet.
MEANING: dict[str, tuple[str, str]] = {
    "memory_efficiency": ("1", "device memory bandwidth reached while streaming weights and KV"),
    "compute_efficiency": ("1", "tensor-engine peak reached in the matmuls with weights"),
    "attention_efficiency": ("1", "tensor-engine peak reached in attention over a prompt"),
    "link_efficiency": ("1", "chip link bandwidth reached by the all-reduces"),
    "layer_launch_s": ("s", "issue of one layer's instructions and its collectives' start, in a decode step"),
    "prefill_launch_s": ("s", "the same in a prefill, where most of it hides behind the matmuls"),
    "slot_layer_s": ("s", "fixed work of one decode slot in one layer, per 4,096 of hidden size"),
    "hop_s": ("s", "latency of one hop between neighbouring chips"),
    "dequant_value_s": ("s", "widening of one 8-bit weight on one core"),
    "kv_gather_s": ("s", "continuous batching: fetch of one cached position of one slot in one layer"),
    "prefill_host_s": ("s", "host work around a prefill call"),
    "old_launch_s": ("s", "added to layer_launch_s for each SDK minor release before 2.16"),
    "old_kv_gather_s": ("s", "continuous batching before SDK 2.19: added per cached position, slot, layer, KV head"),
    "old_reshard_s": ("s", "grouped-query models with more cores than KV heads before SDK 2.18: one of tp^2 messages"),
}

# The same of what a serving stack adds around the steps, and of the clients that loaded it.
SERVING_MEANING: dict[str, tuple[str, str]] = {
    "request_host_s": ("s", "HTTP, routing and tokenizing before a prompt is in the server's queue"),
    "slot_host_s": ("s", "host work of a decode step with n busy slots, times sqrt(n - 1)"),
    "sampling_logit_s": (
        "s",
        "before SDK 2.22, which samples on the device: the same, of each logit of the vocabulary",
    ),
    "client_spacing_s": ("s", "llmperf: work of the client between two launches of a wave"),
    "stop_rate": ("1", "llmperf: chance of an answer to end at a token before its limit"),
}


@dataclass(frozen=True, slots=True)
class Coefficients:
    """All positive; MEANING says what each is. Defaults are the starting point of a fit, not a result."""

    memory_efficiency: float = 0.62
    compute_efficiency: float = 0.5
    attention_efficiency: float = 0.3
    link_efficiency: float = 0.3
    layer_launch_s: float = 1e-4
    prefill_launch_s: float = 3e-5
    slot_layer_s: float = 4e-6
    hop_s: float = 1.5e-6  # SDK intranode-collective-comm.rst: 1 to 2 us
    dequant_value_s: float = 1.7e-12
    kv_gather_s: float = 1.25e-9
    prefill_host_s: float = 1e-2
    old_launch_s: float = 2.5e-5
    old_kv_gather_s: float = 1.6e-10
    old_reshard_s: float = 1.5e-6  # a mesh of single hops


@dataclass(frozen=True, slots=True)
class ServingCoefficients:
    """All positive; SERVING_MEANING says what each is. Defaults are the starting point of a fit, not a result."""

    request_host_s: float = 0.05
    slot_host_s: float = 2e-3
    sampling_logit_s: float = 8e-8
    client_spacing_s: float = 0.1
    stop_rate: float = 1e-3


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """Of the absolute relative errors of some predictions."""

    mean: float
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class GroupError:
    """Errors of one group of published times."""

    n: int
    all: ErrorStats  # of the calibration at hand
    left_out: ErrorStats | None = None  # of fits without the time's own model; None when not worked out

    def as_dict(self) -> dict[str, float]:
        """Flat: n, mean, median, p90, and the same as left_out_* where there are any."""
        held = {} if self.left_out is None else {f"left_out_{k}": v for k, v in asdict(self.left_out).items()}
        return {"n": self.n, **asdict(self.all), **held}


@dataclass(frozen=True, slots=True)
class Seen:
    """From the smallest to the largest dense model that a calibration saw; what lies outside is extrapolated."""

    num_params: tuple[int, int]
    hidden_size: tuple[int, int]

    @classmethod
    def of(cls, models: Iterable[tuple[int, int]]) -> Seen | None:
        """Of (parameters, hidden size) of each; None when there is none."""
        found = list(zip(*models, strict=True))
        return cls(*((min(values), max(values)) for values in found)) if found else None

    def why_outside(self, num_params: int, hidden_size: int) -> list[str]:
        """What of a model lies outside."""
        reasons = []
        low, high = self.num_params
        if not low <= num_params <= high:
            size = f"{num_params / 1e9:.3g}B" if num_params >= 1e9 else f"{num_params / 1e6:.3g}M"
            reasons.append(
                f"{size} parameters are outside of the {low / 1e9:.1f}B to {high / 1e9:.1f}B of the measured models"
            )
        low, high = self.hidden_size
        if not low <= hidden_size <= high:
            reasons.append(f"hidden size {hidden_size} is outside of the {low} to {high} of the measured models")
        return reasons


@dataclass(frozen=True, slots=True)
class Calibration:
    """Coefficients, the data they come from, and how wrong they are on it."""

    coefficients: Coefficients
    date: str  # ISO, of the fit
    data_sha256: str
    num_rows: int  # that took part in the fit
    errors: dict[str, GroupError]
    serving: ServingCoefficients = ServingCoefficients()
    seen: Seen | None = None  # None: no dense model

    @property
    def version(self) -> str:
        """Identifies the calibration in inventories and reports."""
        return f"{VERSION}-{self.date}-{self.data_sha256[:12]}"

    def as_dict(self) -> dict[str, Any]:
        """The stored form: every coefficient with its unit and meaning."""
        return {
            "version": VERSION,
            "date": self.date,
            "data_sha256": self.data_sha256,
            "num_rows": self.num_rows,
            "models_seen": None
            if self.seen is None
            else {name: list(ends) for name, ends in asdict(self.seen).items()},
            "coefficients": _stored(asdict(self.coefficients), MEANING),
            "serving": _stored(asdict(self.serving), SERVING_MEANING),
            "errors": {name: error.as_dict() for name, error in self.errors.items()},
        }

    @classmethod
    def from_json(cls, text: str, where: str) -> Calibration:
        """Read `as_dict` as JSON, or a report of `neuronserve calibrate` that holds it.

        Raises SettingsError, naming `where`, when the text is not a calibration of this version.
        """
        try:
            record = decode(text, dict[str, Any])
            return convert(record.get("calibration", record), _Stored).calibration()
        except JsonError as error:
            raise SettingsError(f"{where} is not a calibration of version {VERSION}: {error}") from error


def _stored(values: dict[str, float], meaning: dict[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    return {
        name: {"value": value, "unit": meaning[name][0], "meaning": meaning[name][1]} for name, value in values.items()
    }


class _Quantity(msgspec.Struct):
    value: Annotated[float, msgspec.Meta(gt=0)]


class _StoredError(msgspec.Struct):
    """`GroupError.as_dict`."""

    n: int
    mean: float
    median: float
    p90: float
    left_out_mean: float | None = None
    left_out_median: float | None = None
    left_out_p90: float | None = None

    def error(self) -> GroupError:
        held = (self.left_out_mean, self.left_out_median, self.left_out_p90)
        seen = [each for each in held if each is not None]
        return GroupError(
            self.n,
            ErrorStats(self.mean, self.median, self.p90),
            ErrorStats(*seen) if len(seen) == len(held) else None,
        )


class _Stored(msgspec.Struct):
    """`Calibration.as_dict`."""

    version: Literal[2]
    date: str
    data_sha256: str
    num_rows: int
    models_seen: Seen | None
    coefficients: dict[str, Any]
    serving: dict[str, Any]
    errors: dict[str, _StoredError]

    def calibration(self) -> Calibration:
        """Raises JsonError when a coefficient is missing, unknown or not positive."""
        return Calibration(
            Coefficients(**_values(self.coefficients, Coefficients)),
            self.date,
            self.data_sha256,
            self.num_rows,
            {name: entry.error() for name, entry in self.errors.items()},
            ServingCoefficients(**_values(self.serving, ServingCoefficients)),
            self.models_seen,
        )


def _values(entries: dict[str, Any], of: type[Coefficients | ServingCoefficients]) -> dict[str, float]:
    """The value of every field of `of`."""
    names = [field.name for field in fields(of)]
    form = msgspec.defstruct(of.__name__, [(name, _Quantity) for name in names], forbid_unknown_fields=True)
    found = convert(entries, form)
    return {name: getattr(found, name).value for name in names}


@cache
def default_calibration() -> Calibration:
    """The calibration shipped with the package."""
    return Calibration.from_json(files("server.cost").joinpath("calibration.json").read_text(), "calibration.json")
