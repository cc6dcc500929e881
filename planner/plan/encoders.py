"""`neuronserve plan` of an encoder: one pass over a batch of padded texts, on independent replicas.

An encoder keeps no cache and generates no tokens, so a replica is a server that takes up to `batch` waiting texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf
from typing import Any, get_args

from ...server.config.formats import WeightFormats
from ...server.cost.calibration import default_calibration
from ...server.cost.evidence import Band, Provenance
from ...server.cost.model import CostModel
from ...server.cost.work import Runtime
from ...server.device.instances import Instance
from ...server.device.prices import PRICE_BASES, PriceBasis
from ...server.device.support import chip_status
from ...server.errors import SettingsError
from ...server.host.memory import GIB
from ...server.models.spec import ModelSpec
from ...server.placement.fit import budget_bytes
from ...server.placement.footprint import encoder_bytes
from ..model_names import resolve_shape
from .known import quantile, sized_at
from .options import PlanOptions, bucket
from .parts import parts_in_question
from .queueing import MAX_LOAD
from .report import NO_POWER, Excluded, price_notes
from .text_batches import ClosedLoop, TextTimes, load_within
from .times import Limit
from .weight_types import QUANTIZATION, WeightDtype, why_no_type
from .words import check_degrees, nothing_fits, over_budget

OPTIONS = (  # fields of PlanOptions that apply to an encoder
    *("model", "input_tokens", "request_rate", "ttft_s", "ttft_p95_s", "ttft_p99_s", "usd_per_hour", "devices"),
    *("task", "tensor_parallel_sizes", "confidence"),
    *("dtypes", "max_batch", "device_memory_utilization", "price_basis"),
)
NO_SERVER = (
    "times are those of the compiled model, measured without a server: what a server's host adds to a request is left "
    "out"
)
PROVENANCES: tuple[Provenance, ...] = get_args(Provenance)  # from the best on
FORMS = ((1, 1), (0, 1), (0, 2))  # models (0: one on each core) and workers of each, as in published benchmarks


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
    latency_p50_s: float
    latency_p99_s: float
    load: float  # share of full passes, back to back
    saturated_texts_s: float  # of one instance, every pass full
    forms: tuple[ClosedLoop, ...]  # of one instance under the load of benchmarks
    instances: int
    sized_at: float  # quantile of the pass's time at which the instances are enough
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
        """Return the sort key: within the limits, then priced, then cost, its 90th percentile, and what was measured.

        The cost is that of the instances at the quantile `sized_at`, as of every plan.
        """
        price, most = self.at_rate[basis], self.instances_band[1]
        cost = inf if price is None else price.hourly_usd
        sure = inf if most is None else cost / self.instances * most
        rank = PROVENANCES.index(self.band.provenance)
        return not self.meets_slo, cost, sure, rank, self.latency_s, self.device, self.tp, self.dtype

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
    """Plan over the catalogue's instances. `ttft_s` and its quantiles limit a text's latency; the rate is texts/s.

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
    notes = (*_support(rows[0], parts), NO_SERVER, *(note for note in price_notes(parts, None) if note != NO_POWER))
    return EncoderReport(
        options, model, search.bucket, default_calibration().version, tuple(rows), tuple(excluded), notes
    )


def _support(first: EncoderRow, parts: Sequence[Instance]) -> Iterator[str]:
    """Yield what the newest SDK's pages say of the chip that is recommended."""
    chip = next(part.chip.name for part in parts if part.name == first.device)
    release, status = chip_status(chip)
    for fact in status:
        yield f"{chip}, under SDK {release}: {fact.statement}"


@dataclass(frozen=True, slots=True)
class _Search:
    model: ModelSpec
    options: PlanOptions
    bucket: int

    def part(self, part: Instance) -> Iterator[EncoderRow | Excluded]:
        for dtype in self.options.dtypes:
            if missing := why_no_type(dtype, part):
                yield Excluded(part.name, None, dtype, missing)
                continue
            for tp in self.options.tensor_parallel_sizes or part.allowed_tp:
                if tp not in part.allowed_tp:
                    continue
                found = list(self._batches(part, tp, dtype))
                yield from found
                if not self.options.tensor_parallel_sizes and isinstance(found[0], EncoderRow):
                    break  # Neuron's software for encoders gives each core a copy of its own

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
        step = cost.encode(batch, self.bucket, is_labelled=options.task != "embed")
        band = cost.calibration.evidence.band(cost.point("encode", batch, self.bucket))
        dp, share = part.num_cores // tp, sized_at(step.extrapolated, options)
        full_s = dp * batch / step.elapsed_s
        sized_s = step.elapsed_s * quantile(band, share)
        pass_s = (sized_s, step.elapsed_s * band.low, step.elapsed_s * band.high)
        within, *counts = (self._count(seconds, batch, dp) for seconds in pass_s)
        count = within or ceil(options.request_rate * sized_s / (dp * batch * MAX_LOAD))
        at = options.request_rate / (count * full_s)
        times = TextTimes(step.elapsed_s, batch, at)
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
            latency_s=times.latency_s,
            latency_p50_s=times.quantile_s(0.5),
            latency_p99_s=times.quantile_s(0.99),
            load=at,
            saturated_texts_s=full_s,
            forms=tuple(ClosedLoop.of(step.elapsed_s, batch, models or dp, workers) for models, workers in FORMS),
            instances=count,
            sized_at=share,
            instances_band=(counts[0], counts[1]),
            at_rate=at_rate,
            band=band,
            misses=(
                *(() if within else (_too_slow(sized_s, options.limits),)),
                *over_budget(None if price is None else price.hourly_usd, options),
            ),
            extrapolated=step.extrapolated,
        )

    def _count(self, pass_s: float, batch: int, dp: int) -> int | None:
        """Return the instances that serve the rate within the limit; None if no number does."""
        load = load_within(pass_s, batch, self.options.limits)
        return ceil(self.options.request_rate * pass_s / (dp * batch * load)) if load else None


def _too_slow(pass_s: float, limits: tuple[Limit, ...]) -> str:
    least = min(limit.seconds for limit in limits)
    return f"latency is {pass_s * 1e3:.1f} ms without any load: the limit is {least * 1e3:.1f} ms"


def _price(hourly: float | None, count: int, options: PlanOptions) -> TextPrice | None:
    if hourly is None:
        return None
    text = count * hourly / 3600 / options.request_rate
    return TextPrice(count * hourly, 1e6 * text, 1e6 * text / options.input_tokens)
