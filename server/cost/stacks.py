"""Serving software on the accelerators, as data: how it batches, pads and samples, and its host time.

A stack's rules are here, from its documents. Its times are a `HostWork`, fitted to load tests (calibration.json). Plan,
simulation, paced server and load replay all read both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ..config.formats import Batching, StackName
from ..device.buckets import powers_of_two, smallest

STACK_NAMES: tuple[StackName, ...] = get_args(StackName)
Padding = Literal["bucket", "model length"]  # the smallest automatic bucket, or the whole compiled length


@dataclass(frozen=True, slots=True)
class Stack:
    """One serving software. `batching` is the matching policy of server/scheduler/batching.py."""

    name: StackName
    meaning: str
    source: str
    batching: Batching
    prompts_fill: Padding
    steps_read: Padding  # positions of each slot that a decode step reads
    samples_on_device: bool = True
    pads_slots: bool = False  # a step runs on the smallest power of two of slots, not on all slots
    prompt_margin: int = 0  # positions that a prompt leaves free in each bucket but the longest
    fills_first_core: bool = False  # the first core has the embedding and the output layer whole, as measured
    host_of: StackName | None = None  # stack with the same server, whose load tests give the host's times

    @property
    def is_continuous(self) -> bool:
        """Whether requests join a running batch; otherwise a batch ends before the next begins."""
        return self.batching != "static"

    @property
    def host(self) -> StackName:
        """The stack under whose name the host's times are in a calibration."""
        return self.host_of or self.name

    def prompt_buckets(self, max_model_len: int) -> tuple[int, ...]:
        """Return the lengths that prompts are padded to without a list of a user, ascending."""
        return powers_of_two(max_model_len) if self.prompts_fill == "bucket" else (max_model_len,)

    def step_buckets(self, max_model_len: int) -> tuple[int, ...]:
        """Return the lengths that decode steps read without a list of a user, ascending."""
        return powers_of_two(max_model_len) if self.steps_read == "bucket" else (max_model_len,)

    def prompt_bucket(self, tokens: int, max_model_len: int) -> int:
        """Return the length that a prompt of `tokens`, at most `max_model_len`, is padded to."""
        return smallest(self.prompt_buckets(max_model_len), tokens, self.prompt_margin)


STACKS: dict[StackName, Stack] = {
    stack.name: stack
    for stack in (
        Stack(
            "nxdi-vllm",
            "vLLM on NxD Inference: a free slot is filled with one prompt at once, then all slots decode together; "
            "since SDK 2.22 a prompt of exactly a bucket's length takes the next",
            "vllm-neuron a5ef7c8 worker/neuronx_distributed_model_loader.py; neuronx-distributed-inference 4bcdc54 "
            "modules/autobucketing.py, models/model_wrapper.py",
            "neuron",
            "bucket",
            "bucket",
            prompt_margin=1,
        ),
        Stack(
            "optimum-vllm",
            "the same with one bucket: optimum-neuron's vLLM, or `enable_bucketing` off",
            "optimum-neuron's servers",
            "neuron",
            "model length",
            "model length",
            fills_first_core=True,
            host_of="nxdi-vllm",
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
            fills_first_core=True,
        ),
        Stack(
            "nxd-static",
            "a static batch of NxD Inference: all prompts together, and no other before the last answer ends",
            "aws-neuron-sdk libraries/nxd-inference/developer_guides/llm-inference-benchmarking-guide.rst",
            "static",
            "bucket",
            "bucket",
            prompt_margin=1,
        ),
        Stack(
            "ideal",
            "the accelerator alone, without any host: prompts share steps with decodes, which read the full length",
            "an upper bound; no measured software does this",
            "continuous",
            "bucket",
            "model length",
        ),
    )
}

NEW_STACK_CHIPS = ("Trainium2", "Trainium3")
USUAL_STACKS = STACKS["nxdi-vllm"], STACKS["vllm-neuron"]  # of older chips and of these


def default_stack(chip: str) -> Stack:
    """Return the usual stack of a chip today: NxD Inference's vLLM, or the plugin on chips that it does not cover."""
    return USUAL_STACKS[chip in NEW_STACK_CHIPS]


@dataclass(frozen=True, slots=True)
class HostWork:
    """Seconds that the host of a stack adds, all at least 0."""

    request_s: float = 0.0  # HTTP, routing and tokenizing before a prompt is in the queue
    slot_s: float = 0.0  # each busy slot of a decode step beyond the first
    logit_s: float = 0.0  # sampling on the host: one logit of each busy slot beyond the first
    copy_s: float = 0.0  # sampling on the host: copying one logit of each compiled slot

    def step_s(self, busy: float, slots: int, sampled_vocab: int = 0) -> float:
        """Return the host time of a decode step with `busy` of `slots` slots in use.

        `sampled_vocab` is the size of the vocabulary if the host samples, 0 if the device does.
        """
        others = max(0.0, busy - 1)
        return others * (self.slot_s + self.logit_s * sampled_vocab) + slots * self.copy_s * sampled_vocab
