"""Prices the passes of an encoder that sequences wait for, one after the other, and all other steps as before."""

from __future__ import annotations

from ..config.formats import StackName
from ..types import StepPlan
from .bucket_edges import PromptGraphs
from .encode_pricer import EncodePricer
from .pricer import Pricer, StepCharge


class EncodingPricer:
    """Implements neuronserve.server.cost.pricer.Pricer. `patches` of the encoder become one position of its result."""

    def __init__(self, steps: Pricer, encoder: EncodePricer, patches: int = 1) -> None:
        self._steps, self._encoder, self._patches = steps, encoder, patches

    def charge(self, plan: StepPlan) -> StepCharge:
        if not plan.encodings:
            return self._steps.charge(plan)
        lengths = (each.item.num_tokens * self._patches for each in plan.encodings)
        return StepCharge(tuple(run for length in lengths for run in self._encoder.runs([length])), None)

    @property
    def extrapolated(self) -> dict[str, None]:
        return self._steps.extrapolated | self._encoder.extrapolated

    @extrapolated.setter
    def extrapolated(self, reasons: dict[str, None]) -> None:
        self._steps.extrapolated = reasons

    @property
    def calibration(self) -> str:
        return self._steps.calibration

    @property
    def stack(self) -> StackName:
        return self._steps.stack

    @property
    def request_s(self) -> float:
        return self._steps.request_s

    @property
    def prompt_graphs(self) -> PromptGraphs:
        return self._steps.prompt_graphs

    def why_extrapolated(self) -> tuple[str, ...]:
        return self._steps.why_extrapolated()
