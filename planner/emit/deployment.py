"""The deployed row of a plan as one record: only this file reads `PlanReport` and `Candidate`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ...server.cost.stacks import STACKS, Stack
from ...server.device.instances import INSTANCES, Instance
from ...server.device.prices import Price, PriceBasis
from ...server.errors import SettingsError
from ...server.models.tensors import num_params
from ..plan.check import prefill_buckets
from ..plan.report import Candidate, PlanReport, TokenPrice
from ..plan.running import NOT_ASKED, Running
from ..plan.weight_types import COMPARED, WeightDtype

MODEL = "<MODEL>"  # placeholder if a plan knows only the dimensions of the model
MODEL_NEEDED = "hub id or directory of the checkpoint"
_BFLOAT16_BYTES = 2
_BUILT_IN = {part.name: part for part in INSTANCES}


@dataclass(frozen=True, slots=True)
class Promise:
    """Figures that the plan promises: means over all instances together."""

    request_rate: float  # requests a second
    input_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float
    ttft_limit_s: float | None
    tpot_limit_s: float | None
    output_tokens_s: float
    load: float  # share of saturation
    cost: TokenPrice | None  # None: no price is known
    misses: tuple[str, ...]
    extrapolated: str  # why no measurement supports the times
    calibration: str
    running: Running = NOT_ASKED  # whether a real accelerator runs it


@dataclass(frozen=True, slots=True)
class Deployment:
    """`instances` of `part`, each with `dp` servers of `tp` cores."""

    promise: Promise
    asked_model: str
    checkpoint: str | None  # hub id or directory; None: the plan knows only dimensions
    checkpoint_bytes: int  # of all weights in bfloat16
    part: Instance
    tp: int
    dp: int
    instances: int
    slots: int  # sequences of a decode step of one server
    weights: WeightDtype
    core_bytes: int  # on the fullest core
    max_model_len: int
    prompt_buckets: tuple[int, ...]  # ascending
    decode_buckets: tuple[int, ...]  # ascending, up to max_model_len
    stack: Stack
    device_memory_utilization: float
    price_basis: PriceBasis
    price: Price | None  # of an hour of one instance
    trace: str | None  # the requests are those of a recording

    @property
    def model(self) -> str:
        return self.checkpoint or MODEL

    @property
    def name(self) -> str:
        """Name of AWS and Kubernetes objects: lower case letters, digits and "-", at most 40 characters."""
        words = f"{Path(self.asked_model).name}-{self.part.name}-tp{self.tp}".lower()
        return re.sub(r"[^a-z0-9]+", "-", words)[-40:].strip("-")

    @property
    def num_servers(self) -> int:
        return self.instances * self.dp

    @property
    def devices(self) -> int:
        """Number of Neuron devices that hold the servers' cores of an instance."""
        return -(-self.tp * self.dp // self.part.chip.cores_per_chip)

    @property
    def servers_per_host(self) -> int:
        """Servers on each host of the instance (an UltraServer has several hosts); 0: one server spans hosts."""
        return self.part.num_cores // self.part.num_hosts // self.tp

    @property
    def is_listed_price(self) -> bool:
        """Whether the built-in catalogue has the price on this basis, so that the basis identifies it."""
        return self.price is not None and _BUILT_IN[self.part.name].prices.of(self.price_basis) == self.price


def deployment_of(report: PlanReport, candidate: Candidate) -> Deployment:
    """Return the row as a deployment. Raises SettingsError if no target can express it."""
    if candidate.pp > 1:
        raise SettingsError(
            f"emit: the row has {candidate.pp} pipeline stages, and nothing that is written runs more than 1"
        )
    if report.options.features:
        raise SettingsError(f"emit: nothing that is written has {' or '.join(report.options.features)}")
    if candidate.dtype not in COMPARED:
        raise SettingsError(f"emit: nothing that is written takes {candidate.dtype} weights")
    if candidate.device not in _BUILT_IN:
        raise SettingsError(
            f"emit: {candidate.device} is an instance of a catalogue file: no type of EC2 is known for it"
        )
    if candidate.lnc != _BUILT_IN[candidate.device].chip.lnc:
        raise SettingsError(f"emit: the row has LNC {candidate.lnc}, and the written files do not change it")
    options, buckets, stack = report.options, report.buckets, STACKS[candidate.stack]
    part = next(part for part in report.parts if part.name == candidate.device)
    is_checkpoint = "/" in options.model or Path(options.model).expanduser().exists()
    return Deployment(
        promise=_promise(report, candidate),
        asked_model=options.model,
        checkpoint=options.model if is_checkpoint else None,
        checkpoint_bytes=num_params(report.model) * _BFLOAT16_BYTES,
        part=part,
        tp=candidate.tp,
        dp=candidate.dp,
        instances=candidate.instances,
        slots=candidate.batch,
        weights=candidate.dtype,
        core_bytes=candidate.memory_bytes,
        max_model_len=buckets.decode,
        prompt_buckets=tuple(sorted({*prefill_buckets(report, candidate), buckets.decode})),  # no prompt is refused
        decode_buckets=stack.step_buckets(buckets.decode),
        stack=stack,
        device_memory_utilization=options.device_memory_utilization,
        price_basis=options.price_basis,
        price=part.prices.of(options.price_basis),
        trace=report.demand.trace.name if report.demand.trace else None,
    )


def _promise(report: PlanReport, candidate: Candidate) -> Promise:
    options = report.options
    return Promise(
        request_rate=options.request_rate,
        input_tokens=report.demand.input_tokens,
        output_tokens=report.demand.output_tokens,
        ttft_s=candidate.ttft_s,
        tpot_s=candidate.tpot_s,
        ttft_limit_s=options.ttft_s,
        tpot_limit_s=options.tpot_s,
        output_tokens_s=candidate.instances * candidate.output_tokens_s,
        load=candidate.load,
        cost=candidate.at_rate[options.price_basis],
        misses=candidate.misses,
        extrapolated=candidate.extrapolated,
        running=candidate.running,
        calibration=report.calibration,
    )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Reason why a target is not written: a sentence without its full stop."""

    reason: str
