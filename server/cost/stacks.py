"""Serving software on the parts, as data: how it batches, pads and samples, and what its host adds to a step.

What of a stack is a rule stands here, from its documents; what is a time is a `HostWork`, fitted to load tests
(calibration.json). Plan, simulation, paced server and load replay all read the same two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from neuronserve.server.config.formats import Batching, StackName

STACK_NAMES: tuple[StackName, ...] = get_args(StackName)
Padding = Literal["bucket", "model length"]  # the power-of-two bucket that holds it, or all of the compiled length


@dataclass(frozen=True, slots=True)
class Stack:
    """One serving software. `batching` is the policy of server/scheduler/batching.py that does as it does."""

    name: StackName
    meaning: str
    source: str
    batching: Batching
    prompts_fill: Padding
    steps_read: Padding  # positions of each slot that a decode step reads
    samples_on_device: bool = True
    pads_slots: bool = False  # a step runs on the power of two that holds the busy slots, not on all of them

    @property
    def is_continuous(self) -> bool:
        """Slots come and go; otherwise a batch ends before the next begins."""
        return self.batching != "static"


STACKS: dict[StackName, Stack] = {
    stack.name: stack
    for stack in (
        Stack(
            "nxdi-vllm",
            "vLLM on NxD Inference: a free slot is filled with one prompt at once, then all slots decode together; "
            "prompts and steps are padded to the compiled length, as in every published load test of it",
            "aws-neuron-sdk libraries/nxd-inference/developer_guides/vllm-user-guide-v1.rst; optimum-neuron's servers",
            "neuron",
            "model length",
            "model length",
        ),
        Stack(
            "vllm-neuron",
            "the vLLM-Neuron plugin of SDK 2.31 and later: one prompt a step, never beside a decode; steps padded to "
            "buckets of slots, and to the full length unless context buckets are asked for",
            "aws-neuron-sdk vllm-neuron/docs/design/vllm/neuron-scheduler.md, decode-context-length-bucketing.md",
            "neuron",
            "bucket",
            "model length",
            pads_slots=True,
        ),
        Stack(
            "tgi",
            "text-generation-inference of optimum-neuron: prompts that wait are encoded together, each padded to the "
            "compiled length, once they are 0.3 times as many as the busy slots or for 20 steps",
            "text-generation-inference launcher flags waiting-served-ratio and max-waiting-tokens since 2.0.1",
            "tgi",
            "model length",
            "model length",
        ),
        Stack(
            "nxd-static",
            "a static batch of NxD Inference: all prompts together, and no other before the last answer ends",
            "aws-neuron-sdk libraries/nxd-inference/developer_guides/llm-inference-benchmarking-guide.rst",
            "static",
            "bucket",
            "bucket",
        ),
        Stack(
            "ideal",
            "the part alone, without any host: prompts share steps with decodes, which read the full length",
            "an upper bound; no software that was measured does this",
            "continuous",
            "bucket",
            "model length",
        ),
    )
}

NEW_STACK_CHIPS = ("Trainium2", "Trainium3")


def default_stack(chip: str) -> Stack:
    """What one would run on a chip today: NxD Inference's vLLM, or the plugin on parts that it no longer covers."""
    return STACKS["vllm-neuron" if chip in NEW_STACK_CHIPS else "nxdi-vllm"]


@dataclass(frozen=True, slots=True)
class HostWork:
    """Seconds that the host of a stack adds. All at least 0."""

    request_s: float = 0.0  # HTTP, routing and tokenizing before a prompt is in the queue
    slot_s: float = 0.0  # each busy slot of a decode step beyond the first
    logit_s: float = 0.0  # sampling on the host: one logit of each busy slot beyond the first
    copy_s: float = 0.0  # sampling on the host: one logit of each compiled slot, brought there

    def step_s(self, busy: float, slots: int, sampled_vocab: int = 0) -> float:
        """What a decode step takes longer than on the device, `busy` of `slots` slots being in use.

        `sampled_vocab` is the size of the vocabulary where the host samples, 0 where the device does.
        """
        others = max(0.0, busy - 1)
        return others * (self.slot_s + self.logit_s * sampled_vocab) + slots * self.copy_s * sampled_vocab
