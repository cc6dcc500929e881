"""`neuronserve plan` of an encoder: one pass over a batch of padded texts, on independent replicas.

An encoder keeps no cache and generates no tokens, so a replica is a server that takes up to `batch` waiting texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, exp, inf
from typing import Any

from ...server.config.formats import WeightFormats
from ...server.cost.calibration import default_calibration
from ...server.cost.evidence import Band
from ...server.cost.model import CostModel
from ...server.cost.work import Runtime
from ...server.device.instances import Instance
from ...server.device.prices import PRICE_BASES, PriceBasis
from ...server.errors import SettingsError
from ...server.host.memory import GIB
from ...server.models.spec import ModelSpec
from ...server.placement.fit import budget_bytes
from ...server.placement.footprint import encoder_bytes
from ..model_names import resolve_shape
from .options import PlanOptions, bucket
from .parts import parts_in_question
from .queueing import BISECTIONS, MAX_LOAD
from .report import NO_POWER, Excluded, price_notes
from .weight_types import QUANTIZATION, WeightDtype, why_no_type
from .words import check_degrees, nothing_fits, over_budget

OPTIONS = (  # fields of PlanOptions that apply to an encoder
    *("model", "input_tokens", "request_rate", "ttft_s", "usd_per_hour", "devices", "tensor_parallel_sizes"),
    *("dtypes", "max_batch", "device_memory_utilization", "price_basis"),
)
NO_SERVER = (
    "an encoder is planned as the accelerator alone: its times leave out what a server's host adds to a request, which "
    "was not measured for encoders"
)


@dataclass(frozen=True, slots=True)
class TextPrice:
    """Dollars for a million texts and tokens at the rate, idle time included."""

    hourly_usd: float  # of everything bought
    texts_usd: float
    tokens_usd: float  # of the texts, without padding


@dataclass(frozen=True, slots=True)
class EncoderRow:
    """A configuration that fits. Seconds are means. A pass is padded, so its time does not depend on its texts."""

    device: str
    tp: int
    dp: int  # replicas on one instance
    dtype: WeightDtype
    batch: int  # texts of a pass
    memory_bytes: int  # on each core
    memory_budget_bytes: int
    pass_s: float
    latency_s: float  # at the rate: from the arrival of a text to its vector
    load: float  # share of full passes, back to back
    saturated_texts_s: float  # of one instance, every pass full
    instances: int
    instances_band: tuple[int | None, int | None]  # P10 and P90; None when no number of them holds the limit
    at_rate: dict[PriceBasis, TextPrice | None]  # None: no price is published
    band: Band  # factors of `pass_s`, and the evidence
    misses: tuple[str, ...]
    extrapolated: str  # why no measurement supports the times

    @property
    def meets_slo(self) -> bool:
        return not self.misses

    @property
    def pass_band_s(self) -> tuple[float, float]:
        """P10 and P90 of a pass, in seconds."""
        return self.pass_s * self.band.low, self.pass_s * self.band.high

    def order(self, basis: PriceBasis) -> tuple[object, ...]:
        """Return the sort key: within the limits first, then priced, then by the 90th percentile of the cost."""
        price, most = self.at_rate[basis], self.instances_band[1]
        cost = inf if price is None else price.hourly_usd
        sure = inf if most is None else cost / self.instances * most
        return not self.meets_slo, sure, cost, self.latency_s, self.device, self.tp, self.dtype

    def as_json(self) -> dict[str, Any]:
        """Return plain values; bands are objects with p10 and p90."""
        known = {name: getattr(self.band, name) for name in ("provenance", "num_rows", "nearest")}
        for name, pair in (("pass_s", self.pass_band_s), ("instances", self.instances_band)):
            known[name] = dict(zip(("p10", "p90"), pair, strict=True))
        plain = {name: value for name, value in asdict(self).items() if name not in ("band", "instances_band")}
        return plain | {"meets_slo": self.meets_slo, "known": known}


@dataclass(frozen=True, slots=True)
class EncoderReport:
    """Result of an encoder's plan; rows are in order."""

    options: PlanOptions
    model: ModelSpec
    bucket: int  # tokens that a text is padded to
    calibration: str
    rows: tuple[EncoderRow, ...]
    excluded: tuple[Excluded, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report for JSON: seconds, bytes, dollars; null means "not known"."""
        return {
            "options": {name: getattr(self.options, name) for name in OPTIONS},
            "model": {"architecture": self.model.architecture},
            "buckets": {"prefill": self.bucket},
            "calibration": self.calibration,
            "candidates": [row.as_json() for row in self.rows],
            "excluded": [asdict(entry) for entry in self.excluded],
            "notes": list(self.notes),
        }


def plan_encoder(options: PlanOptions) -> EncoderReport:
    """Plan over the catalogue's instances. `ttft_s` limits a text's mean latency; `request_rate` is texts a second.

    Raises the errors of `plan`, and SettingsError for a model that is no encoder or has too few positions for a text.
    """
    model = resolve_shape(options.model)
    if not model.is_encoder:
        raise SettingsError(f"model {options.model!r} is no encoder ({model.architecture})")
    if options.input_tokens > model.max_position:
        raise SettingsError(
            f"input_tokens is {options.input_tokens}: {options.model} has {model.max_position} positions"
        )
    parts = parts_in_question(options)
    check_degrees(options, parts)
    search = _Search(model, options, bucket(options.input_tokens, model.max_position))
    found = [entry for part in parts for entry in search.part(part)]
    rows = sorted((row for row in found if isinstance(row, EncoderRow)), key=lambda row: row.order(options.price_basis))
    excluded = [entry for entry in found if isinstance(entry, Excluded)]
    if not rows:
        raise nothing_fits(model, options, excluded)
    notes = (NO_SERVER, *(note for note in price_notes(parts, None) if note != NO_POWER))
    return EncoderReport(
        options, model, search.bucket, default_calibration().version, tuple(rows), tuple(excluded), notes
    )


@dataclass(frozen=True, slots=True)
class _Search:
    model: ModelSpec
    options: PlanOptions
    bucket: int

    def part(self, part: Instance) -> Iterator[EncoderRow | Excluded]:
        for tp in self.options.tensor_parallel_sizes or part.allowed_tp:
            if tp not in part.allowed_tp:
                continue
            for dtype in self.options.dtypes:
                if missing := why_no_type(dtype, part):
                    yield Excluded(part.name, tp, dtype, missing)
                    continue
                yield from self._batches(part, tp, dtype)

    def _batches(self, part: Instance, tp: int, dtype: WeightDtype) -> Iterator[EncoderRow | Excluded]:
        """Yield batches of powers of two, as long as they fit."""
        budget = budget_bytes(part, self.options.device_memory_utilization)
        cost, batch = CostModel.of(self.model, part, tp, Runtime(dtype)), 1
        formats = WeightFormats("bfloat16", QUANTIZATION[dtype])
        while batch <= self.options.max_batch:
            needed = encoder_bytes(self.model, tp, formats, (batch, self.bucket), part.chip.lnc)
            if needed > budget:
                break
            yield self._row(part, cost, dtype, batch, needed)
            batch *= 2
        if batch == 1:
            lacks = needed - budget
            reason = f"one text of {self.bucket} tokens lacks {lacks / GIB:.2f} GiB on each core"
            yield Excluded(part.name, tp, dtype, reason, lacks)

    def _row(self, part: Instance, cost: CostModel, dtype: WeightDtype, batch: int, needed: int) -> EncoderRow:
        options, tp = self.options, cost.step_work.core.tp
        step = cost.encode(batch, self.bucket)
        band = cost.calibration.evidence.band(cost.point("prefill", batch, self.bucket))
        limit, dp = options.ttft_s or inf, part.num_cores // tp
        full_s = dp * batch / step.elapsed_s
        pass_s = (step.elapsed_s, step.elapsed_s * band.low, step.elapsed_s * band.high)
        within, *counts = (self._count(seconds, batch, dp) for seconds in pass_s)
        count = within or ceil(options.request_rate / (full_s * MAX_LOAD))
        at = options.request_rate / (count * full_s)
        latency = latency_s(step.elapsed_s, batch, at)
        at_rate = {basis: _price(part.usd(basis), count, options) for basis in PRICE_BASES}
        price = at_rate[options.price_basis]
        return EncoderRow(
            device=part.name,
            tp=tp,
            dp=dp,
            dtype=dtype,
            batch=batch,
            memory_bytes=needed,
            memory_budget_bytes=budget_bytes(part, options.device_memory_utilization),
            pass_s=step.elapsed_s,
            latency_s=latency,
            load=at,
            saturated_texts_s=full_s,
            instances=count,
            instances_band=(counts[0], counts[1]),
            at_rate=at_rate,
            band=band,
            misses=(
                *(() if within else (_too_slow(step.elapsed_s, limit),)),
                *over_budget(None if price is None else price.hourly_usd, options),
            ),
            extrapolated=step.extrapolated,
        )

    def _count(self, pass_s: float, batch: int, dp: int) -> int | None:
        """Return the instances that serve the rate within the limit; None if no number does."""
        load = load_within(pass_s, batch, self.options.ttft_s or inf)
        return ceil(self.options.request_rate * pass_s / (dp * batch * load)) if load else None


def latency_s(pass_s: float, batch: int, load: float) -> float:
    """Return mean seconds from a text's arrival to the end of its pass, on a replica with Poisson arrivals.

    The wait is half of the pass under way, if there is one, and the delay of a full queue; M/D/1 for a batch of 1. The
    share of time with a pass under way is at least the load; for large batches it is that of a server that takes all
    waiting texts.
    """
    arrivals = load * batch  # during a pass
    under_way = max(load, 1 - 1 / (1 + arrivals * exp(min(arrivals, 50.0))))
    return pass_s * (1 + under_way / 2 + load**2 / (2 * batch * (1 - load)))


def load_within(pass_s: float, batch: int, limit_s: float) -> float:
    """Return the highest load, at most MAX_LOAD, whose latency is within the limit; 0 if there is none."""
    low, high = 0.0, MAX_LOAD
    if latency_s(pass_s, batch, high) <= limit_s:
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if latency_s(pass_s, batch, middle) <= limit_s else (low, middle)
    return low


def _too_slow(pass_s: float, limit_s: float) -> str:
    return f"latency is {pass_s * 1e3:.1f} ms without any load: the limit is {limit_s * 1e3:.1f} ms"


def _price(hourly: float | None, count: int, options: PlanOptions) -> TextPrice | None:
    if hourly is None:
        return None
    text = count * hourly / 3600 / options.request_rate
    return TextPrice(count * hourly, 1e6 * text, 1e6 * text / options.input_tokens)
