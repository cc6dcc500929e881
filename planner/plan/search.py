"""`neuronserve plan`: every instance, degree, weight type and batch for a workload, with times, counts and cost.

Memory comes from the ledger's arithmetic and times from the cost model; this file has no coefficients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...server.cost.calibration import default_calibration
from ...server.device.groups import Place, count_of, part_of
from ...server.device.instances import Instance
from ...server.device.prices import PRICE_BASES, PriceBasis
from ...server.errors import DeviceError
from ...server.host.memory import GIB
from ...server.models.spec import ModelSpec
from ...server.models.stages import stage_layers
from ...server.placement.fit import budget_bytes
from ...workload.workload import Workload
from ..model_names import resolve_decoder
from .demand import Demand
from .known import Known
from .memory import Beside, Memory, why_not_loaded
from .options import LIMITS, PlanOptions
from .parts import GROUP_SIZES, parts_in_question, place_of
from .queueing import Replica
from .replicas import Group, PlannedLoad, edge_notes
from .report import Candidate, Excluded, PlanReport, TokenPrice, price_notes, with_verdicts
from .sizing import Sizing
from .weight_types import WeightDtype, why_no_type
from .words import (
    allowed,
    check_degrees,
    demand_notes,
    nothing_fits,
    over_budget,
    slo_notes,
)


def plan(options: PlanOptions, trace: Workload | None = None) -> PlanReport:
    """Plan over the catalogue's instances. Lengths of a trace replace those of `options`.

    Raises SettingsError for an unknown model or more tokens than it has positions; CheckpointError for a configuration
    that cannot be served; DeviceError for an unknown instance or region, a degree or logical core configuration that no
    considered instance allows, or a price basis without any price; and DeviceMemoryError, with the least missing
    memory, if no considered instance or group of instances holds the model.
    """
    return plan_model(resolve_decoder(options.model), options, parts_in_question(options), trace)


def plan_model(
    model: ModelSpec, options: PlanOptions, parts: tuple[Instance, ...], trace: Workload | None = None
) -> PlanReport:
    """Plan for a known model and known instances. Raises the errors of `plan`."""
    check_degrees(options, parts)
    for stages in options.pipeline_parallel_sizes:
        stage_layers(model.num_layers, stages)  # refuses more stages than layers
    planned = PlannedLoad.of(model, options, trace)
    search = _Search(planned, Memory(model, planned.buckets, Beside.of(options, planned.draft)))
    candidates: list[Candidate] = []
    excluded: list[Excluded] = []
    for count in options.instances_per_replica or (1, *GROUP_SIZES):
        if candidates and not options.instances_per_replica:
            break
        found = search.parts(parts, count)
        candidates += found[0]
        excluded += found[1]
    if not candidates:
        raise nothing_fits(model, options, excluded)
    candidates = with_verdicts(candidates, model, options, planned.buckets, parts)
    candidates.sort(key=lambda candidate: candidate.order(options.price_basis))
    notes = (
        *demand_notes(planned.demand),
        *slo_notes(options, candidates),
        *edge_notes(planned, candidates[0], parts),
        *price_notes(parts, options.chip_watts),
    )
    version = default_calibration().version
    found_all = tuple(candidates), tuple(excluded)
    return PlanReport(options, model, planned.demand, planned.buckets, version, *found_all, notes, parts)


def resized(report: PlanReport, row: Candidate, instances: int) -> Candidate:
    """Return a row of a report with at least so many instances. Raises as `plan`."""
    planned = PlannedLoad.of(report.model, report.options, report.demand.trace)
    search = _Search(planned, Memory(report.model, planned.buckets, Beside.of(report.options, planned.draft)))
    group = Group.of(planned, place_of(report.part(row.device), row.instances_per_replica), row.tp, row.dtype, row.pp)
    found = search.candidate(group, row.batch, instances // row.instances_per_replica)
    return replace(found, running=row.running)


@dataclass(frozen=True, slots=True)
class _Search:
    planned: PlannedLoad
    memory: Memory

    @property
    def _options(self) -> PlanOptions:
        return self.planned.options

    def parts(self, parts: tuple[Instance, ...], count: int) -> tuple[list[Candidate], list[Excluded]]:
        """Return candidates and exclusions of all instances, in groups of `count`."""
        candidates: list[Candidate] = []
        excluded: list[Excluded] = []
        for found in (entry for part in parts for entry in self._part(part, count)):
            if isinstance(found, Candidate):
                candidates.append(found)
            else:
                excluded.append(found)
        return candidates, excluded

    def _part(self, part: Instance, count: int) -> Iterator[Candidate | Excluded]:
        """Yield candidates and exclusions of one instance."""
        try:
            place = place_of(part, count)
        except DeviceError as error:
            yield Excluded(f"{count} x {part.name}", None, None, str(error))
            return
        options = self._options
        for tp in options.tensor_parallel_sizes or part.allowed_tp:
            if tp not in part.allowed_tp:
                yield Excluded(place.name, tp, None, allowed(part))
                continue
            for dtype in options.dtypes:
                if missing := why_no_type(dtype, part) or self._why_no_cache(part):
                    yield Excluded(place.name, tp, dtype, missing)
                    continue
                for stages in options.pipeline_parallel_sizes:
                    yield from self._batches(place, tp, dtype, stages * count)

    def _why_no_cache(self, part: Instance) -> str:
        """Return why `part` has no cache of the wanted type; empty if it has."""
        kv_dtype = self._options.kv_cache_dtype
        return "" if kv_dtype == "bfloat16" else why_no_type(kv_dtype, part)

    def _batches(self, place: Place, tp: int, dtype: WeightDtype, stages: int) -> Iterator[Candidate | Excluded]:
        """Yield candidates with batches of powers of two, as long as they fit."""
        part, lnc = part_of(place), part_of(place).chip.lnc
        budget = budget_bytes(part, self._options.device_memory_utilization)
        unfit = self._unfit(place, tp, dtype, stages, budget)
        if unfit is not None:
            yield unfit
            return
        group = Group.of(self.planned, place, tp, dtype, stages)
        batch = 1
        while batch <= self._options.max_batch and self.memory.needed_bytes(tp, dtype, batch, stages, lnc) <= budget:
            yield self.candidate(group, batch)
            batch *= 2

    def _unfit(self, place: Place, tp: int, dtype: WeightDtype, stages: int, budget: int) -> Excluded | None:
        """Return the exclusion if not even one slot fits, else None."""
        part, count = part_of(place), count_of(place)
        if tp * stages > place.num_cores:
            reason = f"{stages // count} stages of {tp} NeuronCores are more than its {part.num_cores}"
            return Excluded(place.name, tp, dtype, reason, pp=stages)
        for model in filter(None, (self.planned.model, self.planned.draft)):
            if stages > model.num_layers:
                reason = f"{stages} stages are more than the {model.num_layers} layers of {model.architecture}"
                return Excluded(place.name, tp, dtype, reason, pp=stages)
        lacks = self.memory.needed_bytes(tp, dtype, 1, stages, part.chip.lnc) - budget
        if lacks > 0:
            reason = f"one slot of {self.planned.buckets.decode} positions lacks {lacks / GIB:.2f} GiB on each core"
            return Excluded(place.name, tp, dtype, reason, lacks, stages)
        reason = why_not_loaded(self.planned.model, dtype, part, count, self._options)
        return Excluded(place.name, tp, dtype, reason, 0, stages) if reason else None

    def candidate(self, group: Group, batch: int, least: int = 1) -> Candidate:
        """Return a row of at least `least` places, sized at a quantile of the bands of its steps."""
        options, part, dp, each = self._options, group.part, group.dp, group.count
        demand = self.planned.demand
        replica, bubble, extrapolated = group.replica(self.planned, batch)
        sizing = Sizing.of(replica, group, self.planned, batch, extrapolated)
        count = sizing.count(least)
        rate = options.request_rate / (count * dp)  # of one replica
        service = replace(replica, peers=count * dp).at(rate)
        most = dp * sizing.most_rate(count)
        prefill_share = _prefill_share(replica)
        at_rate = _prices(part, count * each, options.request_rate, prefill_share, demand)
        price = at_rate[options.price_basis]
        tokens_s, saturated_s = (dp / each * speed * demand.output_tokens for speed in (rate, replica.saturation))
        bands = group.load_bands(batch, self.planned.buckets.decode)
        joule = _per_joule(tokens_s, part, options.chip_watts)
        return Candidate(
            device=part.name,
            tp=group.tp,
            pp=group.stages,
            dp=dp,
            dtype=group.dtype,
            batch=batch,
            stack=group.stack.name,
            memory_bytes=self.memory.needed_bytes(group.tp, group.dtype, batch, group.stages, part.chip.lnc),
            memory_budget_bytes=budget_bytes(part, options.device_memory_utilization),
            prefill_s=replica.prefill_s + replica.later_stages_s,
            decode_s=replica.step_s(batch),
            ttft_s=service.ttft_s,
            tpot_s=service.tpot_s,
            quantiles_s={limit.name: limit.of(service) for limit in LIMITS.values() if limit.share is not None},
            load=rate / replica.saturation,
            saturated_output_tokens_s=saturated_s,
            slo_request_rate=most / each if sizing.fewest else 0.0,
            output_tokens_s=tokens_s,
            instances=count * each,
            sized_at=sizing.share,
            at_rate=at_rate,
            at_capacity=_prices(part, each, most, prefill_share, demand),
            known=Known.of(sizing.ends, replace(sizing.load, count=count)).under_load(service, saturated_s, bands),
            misses=(*sizing.misses(count), *over_budget(None if price is None else price.hourly_usd, options)),
            bubble=bubble,
            extrapolated=extrapolated,
            tokens_per_joule=joule,
            grams_per_million_tokens=_grams(joule, options.grid_g_per_kwh),
            region=part.prices.region,
            lnc=part.chip.lnc,
            instances_per_replica=each,
            tokens_per_step=replica.tokens_per_step,
        )


def _grams(tokens_per_joule: float | None, grid_g_per_kwh: float | None) -> float | None:
    """Return grams of CO2 equivalent for a million tokens: a kilowatt-hour is 3.6 million joules."""
    return None if tokens_per_joule is None or grid_g_per_kwh is None else grid_g_per_kwh / (3.6 * tokens_per_joule)


def _per_joule(tokens_s: float, part: Instance, chip_watts: float | None) -> float | None:
    return None if chip_watts is None else tokens_s / (chip_watts * part.num_chips)


def _prefill_share(replica: Replica) -> float:
    """Return the prefill's share of a request's device time if every slot is busy."""
    return replica.prefill_s * replica.saturation


def _prices(
    part: Instance, count: int, request_rate: float, share: float, demand: Demand
) -> dict[PriceBasis, TokenPrice | None]:
    """Return prices on every basis for `count` instances that together serve `request_rate`."""
    hourly = {basis: part.usd(basis) for basis in PRICE_BASES}
    return {
        basis: None if price is None else TokenPrice.of(count * price, request_rate, share, demand)
        for basis, price in hourly.items()
    }
