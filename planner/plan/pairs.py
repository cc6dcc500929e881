"""Published times of one deployment with and without a feature, and the band of a predicted gain.

The table is pairs.json; each row has its source. A gain is the time with the feature over the time without it. Its
error is published over predicted, so that errors of plain steps, which have bands of their own, cancel. Rows whose
tokens per step are not published say nothing about the error of a time per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from math import log
from statistics import median
from typing import Literal

import msgspec

from ...server.cost.calibration import Calibration, default_calibration
from ...server.cost.evidence import Band, Phase
from ...server.cost.model import CostModel
from ...server.cost.speculation import METHODS, SpeculativeMethod, head_of
from ...server.cost.spread import both, interval
from ...server.cost.work import Runtime
from ...server.device.instances import INSTANCES, Instance
from ...server.models.public import known_model
from ...server.models.spec import ModelSpec
from ...server.typed_json import Count, Positive, Text, decode

Feature = SpeculativeMethod | Literal["fp8_kv"]
Figure = Literal["tpot_ms", "ttft_ms"]
FIGURES: dict[Phase, Figure] = {"decode": "tpot_ms", "prefill": "ttft_ms"}
FP8_KV_BYTES = 1
OTHER_CHIP = 1.5  # exponent of a band on a chip without any pair


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row: a deployment, and its median times without a feature (`plain_`) and with it, in milliseconds."""

    feature: Feature
    model: Text  # of the table of public models
    instance: Text
    tp: Count
    slots: Count
    positions: Count  # of a slot
    prompt: int  # tokens; 0 = not stated
    plain_tpot_ms: Positive
    tpot_ms: Positive
    sdk: Text
    date: Text
    source: Text
    draft: Text | None = None  # a model of its own
    draft_tp: Count | None = None  # None: as the target
    guesses: int = 0
    tokens_per_step: Positive | None = None  # None: not published
    plain_ttft_ms: Positive | None = None
    ttft_ms: Positive | None = None
    weights: Text = "bfloat16"  # with the feature
    lnc: Count | None = None  # None: as the chip comes
    is_continuous: bool = True
    note: str = ""

    @property
    def series(self) -> tuple[str, str, str]:
        """Source, release and model: rows of one series are not independent."""
        return self.source, self.sdk, self.model

    @property
    def name(self) -> str:
        """Name such as `gpt-oss-120b TP16 on trn2.48xlarge with and without eagle3`."""
        return f"{self.model} TP{self.tp} on {self.instance} with and without {self.feature}"

    @property
    def part(self) -> Instance:
        return next(each for each in INSTANCES if each.name == self.instance).with_lnc(self.lnc)

    def gain(self, figure: Figure) -> float | None:
        """Return the published gain; None if it is not published, or of tokens per step that are not."""
        plain, changed = getattr(self, f"plain_{figure}"), getattr(self, figure)
        is_known = figure == "ttft_ms" or self.feature not in METHODS or self.tokens_per_step
        return changed / plain if plain and changed and is_known else None


@dataclass(frozen=True)
class PricedPair:
    """A row with the times that a calibration predicts, in seconds."""

    pair: Pair
    calibration: Calibration

    @cached_property
    def plain_step_s(self) -> float:
        """Time of a decode step without the feature."""
        return self._model(self._target, Runtime()).decode(self.pair.slots, self.pair.positions).elapsed_s

    @cached_property
    def step_s(self) -> float:
        """Time of a decode step with the feature."""
        pair, guesses = self.pair, self.pair.guesses
        kv_bytes = FP8_KV_BYTES if pair.feature == "fp8_kv" else 2
        runtime = Runtime(pair.weights, tokens_per_slot=guesses + 1, kv_bytes=kv_bytes)
        seconds = self._model(self._target, runtime).decode(pair.slots, pair.positions).elapsed_s
        if pair.feature not in METHODS:
            return seconds
        method = METHODS[pair.feature]
        runtime = Runtime(tokens_per_slot=method.tokens_per_run(guesses))
        run = self._model(self._draft, runtime, pair.draft_tp)
        return seconds + method.runs(guesses) * run.decode(pair.slots, pair.positions).elapsed_s

    def gain(self, figure: Figure) -> float:
        """Return the predicted gain; without published tokens per step, that of one token a step."""
        pair = self.pair
        if figure == "tpot_ms":
            return self.step_s / self.plain_step_s / (pair.tokens_per_step or 1)
        plain_s = self._prompt_s(self._target, "bfloat16")
        changed_s = self._prompt_s(self._target, pair.weights)
        if pair.feature in METHODS:
            changed_s += self._prompt_s(self._draft, "bfloat16") - self.calibration.coefficients["prefill_call"]
        return changed_s / plain_s

    def error(self, figure: Figure) -> float | None:
        """Return the published gain over the predicted one; None if it is not published."""
        published = self.pair.gain(figure)
        return None if published is None else published / self.gain(figure)

    @property
    def _target(self) -> ModelSpec:
        return _known(self.pair.model)

    @property
    def _draft(self) -> ModelSpec:
        pair = self.pair
        return _known(pair.draft) if pair.draft else head_of(self._target, METHODS[pair.feature])  # type: ignore[index]

    def _model(self, spec: ModelSpec, runtime: Runtime, tp: int | None = None) -> CostModel:
        own = replace(runtime, is_continuous=self.pair.is_continuous)
        return CostModel.of(spec, self.pair.part, tp or self.pair.tp, own, self.calibration)

    def _prompt_s(self, spec: ModelSpec, weights: str) -> float:
        return self._model(spec, Runtime(weights)).prefill(self.pair.prompt, self.pair.prompt).elapsed_s


def _known(name: str) -> ModelSpec:
    spec = known_model(name)
    assert spec is not None, f"pairs.json: {name} is not in public.json"
    return spec


class _Table(msgspec.Struct):
    pairs: list[Pair]


STEP_OF: dict[Phase, Phase] = {"throughput": "decode", "itl": "decode", "ttft": "prefill"}  # what a figure follows


@cache
def pairs() -> tuple[Pair, ...]:
    """Return all rows in the order of the table."""
    return tuple(decode(files("neuronserve.planner.plan").joinpath("pairs.json").read_text(), _Table).pairs)


def priced_pairs(calibration: Calibration | None = None) -> tuple[PricedPair, ...]:
    """Return all rows with the times that a calibration predicts, by default the one in force."""
    return tuple(PricedPair(pair, calibration or default_calibration()) for pair in pairs())


def series_errors(figure: Figure, rows: Iterable[PricedPair]) -> Mapping[tuple[str, str, str], float]:
    """Return the log of the median error of each series of speculative decoding."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        error = row.error(figure) if row.pair.feature in METHODS else None
        if error is not None:
            found.setdefault(row.pair.series, []).append(log(error))
    return {series: median(errors) for series, errors in found.items()}


class SpeculativeBands:
    """Bands of steps with one method of speculative decoding, by the pairs and the calibration in force."""

    def __init__(self, method: SpeculativeMethod) -> None:
        self._method = method
        self._rows = [row for row in priced_pairs() if row.pair.feature in METHODS]
        self._logs = {phase: interval(series_errors(figure, self._rows).values()) for phase, figure in FIGURES.items()}

    def widened(self, plain: Band, phase: Phase, chip: str) -> Band:
        """Return the band of a step or figure from the target's own: errors of both are taken as independent."""
        power = 1.0 if any(row.pair.part.chip.name == chip for row in self._rows) else OTHER_CHIP
        low, high = (power * each for each in self._logs[STEP_OF.get(phase, phase)])
        if phase == "throughput":
            low, high = -high, -low  # more tokens in shorter steps
        nearest = min(self._rows, key=lambda row: (row.pair.feature != self._method, row.pair.part.chip.name != chip))
        return replace(
            plain,
            low=both(plain.low, low),
            high=both(plain.high, high),
            provenance="formula",
            num_rows=len(self._rows),
            nearest=nearest.pair.name,
        )


def left_out(figure: Figure, rows: Iterable[PricedPair]) -> dict[tuple[str, str, str], bool]:
    """Return for each series of speculative decoding whether the band that other series give holds it."""
    known = series_errors(figure, rows)
    bands = {own: interval(error for each, error in known.items() if each != own) for own in known}
    return {own: bands[own][0] <= error <= bands[own][1] for own, error in known.items()}
