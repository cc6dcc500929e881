"""A runner that writes what the last user's message says, a token at a time, so that a test chooses the output."""

from __future__ import annotations

from tokenizers import pre_tokenizers

from neuronserve.server.engine.loop import Pending
from neuronserve.server.types import SampledToken, ScheduledSeq, StepPlan, StepResult, TokenLogprobs

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())  # of the fake checkpoint: one id each, and then
SPECIAL = {256: "<|start|>", 257: "<|end|>", 258: "<|eos|>"}
EOS, PAD = 258, 259


class EchoRunner:
    """Runner of the fake checkpoint, for templates with `<|pad|>` before and after each message.

    A special token is written as text.
    """

    def submit(self, plan: StepPlan) -> Pending:
        sampled = {seq.request_id: self._next(seq) for seq in plan.seqs if seq.needs_sample}
        return lambda: StepResult(plan.step_id, sampled, seconds=0.0)

    def _next(self, seq: ScheduledSeq) -> SampledToken:
        prompt = list(seq.history[: seq.num_prompt_tokens])
        end = len(prompt) - 1 - prompt[::-1].index(PAD)  # of the last message
        start = end - 1 - prompt[:end][::-1].index(PAD)
        text = [
            token
            for given in prompt[start + 1 : end]
            for token in ([given] if given not in SPECIAL else map(BYTES.index, SPECIAL[given]))
        ]
        at = len(seq.history) - seq.num_prompt_tokens
        token = text[at] if at < len(text) else EOS
        return SampledToken(token, _logprobs(token, seq.sampling.logprobs))


def _logprobs(token: int, num_top: int | None) -> TokenLogprobs | None:
    """The token is the best one; those after it in the vocabulary follow."""
    if num_top is None:
        return None
    top = tuple((token + i) % PAD for i in range(num_top))
    return TokenLogprobs(-1.0, top, tuple(-1.0 - i for i in range(num_top)))
