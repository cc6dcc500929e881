"""Deployment behind an endpoint, as its owner describes it: the steps of a request there."""

from __future__ import annotations

from dataclasses import dataclass

from ...server.cost.calibration import Calibration
from ...server.cost.model import CostModel
from ...server.cost.stacks import HostWork, Stack
from ...server.cost.work import Runtime
from ...server.device.buckets import smallest
from ...server.device.instances import Instance
from ...server.errors import SettingsError
from ...server.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model behind one endpoint: `data_parallel_size` engines of `max_num_seqs` slots each."""

    model_name: str
    model: ModelSpec
    instance: Instance
    stack: Stack
    max_model_len: int
    max_num_seqs: int
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    weight_dtype: str = "bfloat16"

    def check(self) -> None:
        """Raise DeviceError or SettingsError for an impossible deployment."""
        self.instance.check_groups(self.tensor_parallel_size, self.data_parallel_size)
        if not 2 <= self.max_model_len <= self.model.max_position:
            raise SettingsError(
                f"max_model_len is {self.max_model_len}: {self.model_name} has 2 to {self.model.max_position} positions"
            )

    def cost(self, calibration: Calibration) -> CostModel:
        """Return the cost model of one engine. Raises DeviceError or SettingsError."""
        runtime = Runtime(self.weight_dtype, self.stack.is_continuous)
        return CostModel.of(self.model, self.instance, self.tensor_parallel_size, runtime, calibration)

    def prompt_bucket(self, tokens: int) -> int:
        """Return the positions that a prompt of `tokens` is padded to."""
        return self.stack.prompt_bucket(min(tokens, self.max_model_len), self.max_model_len)

    def step_bucket(self, context: int) -> int:
        """Return the positions of each slot that a decode step reads if the longest context is `context` tokens."""
        return smallest(self.stack.step_buckets(self.max_model_len), min(context, self.max_model_len))

    def step_slots(self, busy: int) -> int:
        """Return the slots that a step of `busy` sequences computes."""
        padded = 1 << (busy - 1).bit_length()
        return min(self.max_num_seqs, padded) if self.stack.pads_slots else self.max_num_seqs

    def sampled_on_host_s(self, host: HostWork, busy: float, slots: int) -> float:
        """Return the host's seconds for the logits of a decode step; 0 if the device samples."""
        if self.stack.samples_on_device:
            return 0.0
        others = max(0.0, busy - 1)
        return self.model.vocab_size * (others * host.logit_s + slots * host.copy_s)
