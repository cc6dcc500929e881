"""The reference: the shipped BF16 weights in transformers' LlamaForCausalLM, computed in float32 by torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM
from transformers.utils import logging

from tools.default_model.backend import END_IDS, GeneratedIds, until_end

BATCH = 32


class TorchBackend:
    def __init__(self, directory: Path) -> None:
        logging.set_verbosity_error()
        self.model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def generate(self, prompts: Sequence[list[int]], max_tokens: int) -> list[GeneratedIds]:
        """Generate greedy answers, in left-padded batches of prompts of similar length."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, GeneratedIds] = {}
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            answers.update(zip(chosen, self._batch([prompts[i] for i in chosen], max_tokens), strict=True))
        return [answers[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[list[int]], max_tokens: int) -> list[GeneratedIds]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=list(END_IDS),
                pad_token_id=0,
            )
        return [until_end(row[width:].tolist()) for row in out]

    def nats(self, ids: list[int]) -> list[float]:
        """Return the negative log-likelihood of each token except the first, given those before it."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids])).logits[0, :-1]
        values: list[float] = torch.nn.functional.cross_entropy(
            logits, torch.tensor(ids[1:]), reduction="none"
        ).tolist()
        return values
