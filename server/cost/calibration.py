"""The coefficients of the cost model with their evidence and errors, and the file that stores them.

Each coefficient is one physical quantity, not a table of measurements. planner/calibrate/ fits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from ..config.formats import StackName
from ..errors import SettingsError
from ..typed_json import JsonError, convert, decode
from .evidence import Evidence, Phase, Point, Sample
from .stacks import HostWork
from .terms import TERMS

VERSION = 4
DIGITS = 4  # of a stored error or size, which are accurate to two digits


@dataclass(frozen=True, slots=True)
class ErrorStats:
    """Relative errors of some predictions: statistics of their sizes, and `bias`, the median with its sign."""

    mean: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class SeriesError:
    """Errors of series that a fit had not seen: each counts once, by the mean absolute error of its rows."""

    n: int  # series
    mean: float
    low: float  # of the interval that holds the mean nine times in ten when series are drawn with replacement
    high: float


@dataclass(frozen=True, slots=True)
class GroupError:
    """Errors of one group of published figures."""

    n: int
    all: ErrorStats  # of this calibration
    # Errors of fits that left out some data, by that data.
    left_out: dict[str, ErrorStats | None] = field(default_factory=dict)
    series: SeriesError | None = None  # of fits that left out the series


@dataclass(frozen=True, slots=True)
class Calibration:
    """Coefficients, the data that they were fitted to, and their errors on it."""

    coefficients: Mapping[str, float]  # by the names of terms
    date: str  # ISO, of the fit
    data_sha256: str
    num_rows: int  # in the fit
    errors: Mapping[str, GroupError]
    hosts: Mapping[StackName, HostWork] = field(default_factory=dict)
    clients: Mapping[str, float] = field(default_factory=dict)  # of load tests; only their check needs them
    evidence: Evidence = field(default_factory=lambda: Evidence(()))
    baselines: Mapping[str, Mapping[str, ErrorStats | None]] = field(default_factory=dict)  # simpler models, by group
    encoders_sha256: str = ""  # of the table of encoders; empty before a fit to one

    @property
    def version(self) -> str:
        """Name of the calibration in inventories and reports."""
        encoders = f"-{self.encoders_sha256[:6]}" if self.encoders_sha256 else ""
        return f"{VERSION}-{self.date}-{self.data_sha256[:12]}{encoders}"

    def host(self, stack: StackName) -> HostWork:
        """Return the host time that a stack adds; zero without a load test of the stack."""
        return self.hosts.get(stack, HostWork())

    def as_dict(self) -> dict[str, Any]:
        """Return the stored form: every coefficient with its unit and meaning."""
        return {
            "version": VERSION,
            "date": self.date,
            "data_sha256": self.data_sha256,
            "encoders_sha256": self.encoders_sha256,
            "num_rows": self.num_rows,
            "coefficients": {
                name: {"value": value, "unit": TERMS[name].unit, "meaning": TERMS[name].meaning}
                for name, value in self.coefficients.items()
            },
            "hosts": {name: asdict(work) for name, work in self.hosts.items()},
            "clients": dict(self.clients),
            "errors": {name: asdict(error) for name, error in self.errors.items()},
            "baselines": {
                name: {group: stats and asdict(stats) for group, stats in groups.items()}
                for name, groups in self.baselines.items()
            },
            "evidence": [_stored_sample(sample) for sample in self.evidence.samples],
        }

    @classmethod
    def from_json(cls, text: str, where: str) -> Calibration:
        """Read JSON of `as_dict`, or a report of `neuronserve calibrate` that contains it.

        Raises SettingsError, naming `where`, when the text is no calibration of this version.
        """
        try:
            record = decode(text, dict[str, Any])
            return convert(record.get("calibration", record), _Stored).calibration()
        except JsonError as error:
            raise SettingsError(f"{where} is not a calibration of version {VERSION}: {error}") from error


def _stored_sample(sample: Sample) -> dict[str, Any]:
    flat = asdict(sample)
    point = flat.pop("point")
    return {**point, **flat, "billions": _rounded(sample.point.billions), "error": _rounded(sample.error)}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


Positive = Annotated[float, msgspec.Meta(gt=0)]
NotNegative = Annotated[float, msgspec.Meta(ge=0)]


class _Quantity(msgspec.Struct):
    value: Positive


class _StoredHost(msgspec.Struct, forbid_unknown_fields=True):
    """Stored form of `HostWork`."""

    request_s: NotNegative
    slot_s: NotNegative
    logit_s: NotNegative
    copy_s: NotNegative

    def work(self) -> HostWork:
        return HostWork(self.request_s, self.slot_s, self.logit_s, self.copy_s)


class _StoredSample(msgspec.Struct, forbid_unknown_fields=True):
    """Stored form of `Sample`, flat."""

    phase: Phase
    chip: str
    billions: Positive
    tp: Annotated[int, msgspec.Meta(ge=1)]
    batch: Annotated[int, msgspec.Meta(ge=1)]
    positions: Annotated[int, msgspec.Meta(ge=1)]
    weight_bytes: Positive
    has_experts: bool
    model: str
    source: str
    num_rows: Annotated[int, msgspec.Meta(ge=1)]
    error: Positive
    release: int = 0

    def sample(self) -> Sample:
        point = Point(*(getattr(self, name) for name in Point.__slots__))
        return Sample(point, self.model, self.source, self.num_rows, self.error, self.release)


class _Stored(msgspec.Struct):
    """Stored form of `Calibration`, as `as_dict` writes it."""

    version: Literal[4]
    date: str
    data_sha256: str
    num_rows: int
    coefficients: dict[str, _Quantity]
    hosts: dict[StackName, _StoredHost]
    clients: dict[Literal["spacing_s", "stop_rate", "draw_s"], Positive]
    errors: dict[str, GroupError]
    evidence: list[_StoredSample]
    baselines: dict[str, dict[str, ErrorStats | None]] = {}
    encoders_sha256: str = ""

    def calibration(self) -> Calibration:
        """Return the calibration. Raises JsonError when a coefficient is unknown, or a required one is missing."""
        unknown = [name for name in self.coefficients if name not in TERMS]
        missing = [name for name, term in TERMS.items() if not term.is_optional and name not in self.coefficients]
        if unknown or missing:
            raise JsonError(
                f"coefficients: unknown {', '.join(unknown) or 'none'}, missing {', '.join(missing) or 'none'}"
            )
        return Calibration(
            {name: quantity.value for name, quantity in self.coefficients.items()},
            self.date,
            self.data_sha256,
            self.num_rows,
            self.errors,
            {name: host.work() for name, host in self.hosts.items()},
            {str(name): value for name, value in self.clients.items()},
            Evidence(sample.sample() for sample in self.evidence),
            self.baselines,
            self.encoders_sha256,
        )


@cache
def shipped_calibration() -> Calibration:
    """Return the calibration that comes with the package."""
    return Calibration.from_json(
        files("neuronserve.server.cost").joinpath("calibration.json").read_text(), "calibration.json"
    )


_given: Calibration | None = None


def use_calibration(file: str | None) -> None:
    """Set the calibration of this process to the one in `file`; None: the shipped one.

    Raises SettingsError, and changes nothing, for a file that cannot be read or holds no calibration.
    """
    global _given  # noqa: PLW0603  # global as the catalogue is; set before anything reads it
    _given = None if file is None else read_calibration(Path(file))


def default_calibration() -> Calibration:
    """Return the calibration in force."""
    return _given or shipped_calibration()


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in a file. Raises SettingsError if it cannot be read or has none of this version."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"calibration {str(path)!r} cannot be read: {reason}") from error
    return Calibration.from_json(text, f"calibration {str(path)!r}")
