"""A runner that writes given transcripts, and the fake checkpoint of a model that transcribes."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import numpy as np

from neuronserve.server.engine.loop import Pending
from neuronserve.server.types import SampledToken, ScheduledSeq, StepPlan, StepResult, TokenLogprobs
from tests.api.echo import BYTES, EOS

NAMES = ["startoftranscript", "de", "en", "translate", "transcribe", "startofprev", "nospeech", "notimestamps"]
IDS = {name: 260 + i for i, name in enumerate(NAMES)}
FIRST_TIME = 260 + len(NAMES)
NUM_TIMES = 1501
VOCAB_SIZE = FIRST_TIME + NUM_TIMES


def write_speech_checkpoint(directory: Path) -> Path:
    """Make the fake checkpoint in `directory` one of Whisper's family."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    names = [*NAMES, *(f"{i * 0.02:.2f}" for i in range(NUM_TIMES))]
    for token_id, name in enumerate(names, 260):
        tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": token_id, "content": f"<|{name}|>"})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((directory / "config.json").read_text())
    fields = {"model_type": "whisper", "vocab_size": VOCAB_SIZE, "suppress_tokens": [3], "max_source_positions": 1500}
    fields |= {"decoder_layers": 1, "decoder_attention_heads": 3}
    (directory / "config.json").write_text(json.dumps({**config, **fields}))
    (directory / "generation_config.json").write_text(json.dumps({"alignment_heads": [[0, 0]]}))
    (directory / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80}))
    return directory


def token_ids(text: str) -> list[int]:
    """Return the tokens of a transcript, whose times are between bars, such as `|0.5|`."""
    found: list[int] = []
    for i, part in enumerate(text.split("|")):
        marks = {" ": "Ġ"}
        found += [FIRST_TIME + round(float(part) * 50)] if i % 2 else [BYTES.index(marks.get(c, c)) for c in part]
    return found


class SpeechRunner:
    """Runner whose transcript of a window follows from what its prompt says, and from the number of windows so far.

    `texts` are those of windows with times; without times, the prompt itself is spelled.
    """

    def __init__(self, texts: list[str]) -> None:
        self._texts = [token_ids(text) for text in texts]
        self._written: dict[str, list[int]] = {}

    def submit(self, plan: StepPlan) -> Pending:
        sampled = {seq.request_id: self._next(seq) for seq in plan.seqs if seq.needs_sample}
        return lambda: StepResult(plan.step_id, sampled, seconds=0.0)

    def _next(self, seq: ScheduledSeq) -> SampledToken:
        prompt, rules = list(seq.history[: seq.num_prompt_tokens]), seq.sampling.transcript
        if rules is not None and rules.aligned_heads:  # a token has a tenth of a second
            count = len(prompt) - rules.aligned[0]
            return SampledToken(EOS, row=(np.arange(count, dtype=np.float32) / 10).tobytes())
        if prompt == [IDS["startoftranscript"]]:
            asked = seq.sampling.logprob_token_ids
            return SampledToken(IDS["de"], TokenLogprobs(-1.0, asked, (log(0.25),) * len(asked)) if asked else None)
        if seq.request_id not in self._written:
            names = {token_id: name for name, token_id in IDS.items()}
            said = "".join(names[i][:6] if i in names else chr(i) for i in prompt if i in names)
            has_times = IDS["notimestamps"] not in prompt
            self._written[seq.request_id] = self._texts.pop(0) if has_times else token_ids(f" {said}")
        text, at = self._written[seq.request_id], len(seq.history) - seq.num_prompt_tokens
        probs = None if seq.sampling.logprobs is None else TokenLogprobs(-0.5)
        return SampledToken(text[at] if at < len(text) else EOS, probs)
