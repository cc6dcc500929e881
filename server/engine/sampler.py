"""The sampler: per-request changes to the logits, grammar masks, then one kernel over all rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..config.speculation import SpeculationConfig
from ..host.address_map import ADDRESSES
from ..kernels.program import Program
from ..kernels.sample.records import SampleOperands
from ..kernels.sample.sample import sample, scratch_floats
from ..kernels.workers import WorkerPool
from ..types import SampledToken, SamplingParams, ScheduledSeq
from .drafted import accepted_tokens, draft_rows, with_synthetic
from .grammar_masks import GrammarMasks
from .grammar_store import GrammarStore
from .logits import RawLogprobs, adjust, changes_logits, num_generated

Further = dict[str, tuple[SampledToken, ...]]
NOT_A_NUMBER = "the model's logits are not finite numbers"


class Sampler:
    """Samples in place from one logits array [max_samples, width], whose rows are the sampled sequences in order."""

    def __init__(
        self,
        pool: WorkerPool,
        logits: npt.NDArray[np.float32],
        vocab_size: int,
        grammars: GrammarStore | None = None,
        drafts: SpeculationConfig | None = None,
    ) -> None:
        """Prepare rows for `logits`. Without `grammars` no request may have one, and every id of the model is a token.

        Otherwise ids beyond the tokenizer's, which pad the model's embeddings, are never sampled.
        """
        self._pool, self.logits, self.vocab_size = pool, logits, vocab_size
        self._acceptance_rate = None if drafts is None else drafts.acceptance_rate  # None: drafts are verified
        known = None if grammars is None else grammars.num_ids
        self.num_ids = vocab_size if known is None else min(known, vocab_size)
        self._masks = GrammarMasks(grammars, len(logits), self.num_ids)
        rows, width = logits.shape
        self._scratch = np.zeros((pool.num_threads, scratch_floats(width)), np.float32)
        self._temperature, self._top_p, self._min_p = (np.zeros(rows, np.float32) for _ in range(3))
        self._top_k, self._seed, self._drawn, self._chosen = (np.zeros(rows, np.int64) for _ in range(4))
        self._of_rows: list[SamplingParams | None] = [None] * rows  # parameters that each row holds
        self._looks_at_logits = [False] * rows
        ADDRESSES.register_attributes("sampler", self)
        self.program = Program("sampler", self)
        self.program.add("sample", sample, [self._operands()])

    @property
    def num_rows(self) -> int:
        """Largest number of rows in one step."""
        return len(self.logits)

    def _operands(self) -> SampleOperands:
        return SampleOperands(
            logits=self.logits.ctypes.data,
            ldc=self.logits.shape[1],
            vocab=self.num_ids,
            scratch=self._scratch.ctypes.data,
            scratch_floats=self._scratch.shape[1],
            temperature=self._temperature.ctypes.data,
            top_k=self._top_k.ctypes.data,
            top_p=self._top_p.ctypes.data,
            min_p=self._min_p.ctypes.data,
            seed=self._seed.ctypes.data,
            drawn=self._drawn.ctypes.data,
            masks=self._masks.addresses.ctypes.data,
            chosen=self._chosen.ctypes.data,
        )

    def __call__(self, seqs: Sequence[ScheduledSeq], step: int) -> tuple[dict[str, SampledToken], Further]:
        """Sample one token for each of `seqs`, and one after each draft that was itself sampled.

        `step` is the address of the step record that made the logits.
        """
        if not any([seq.num_drafts for seq in seqs]):
            tokens = self._sample(seqs, [num_generated(seq) for seq in seqs], step)
            return {seq.request_id: token for seq, token in zip(seqs, tokens, strict=True)}, {}
        rows, drawn = draft_rows(seqs, is_whole=self._acceptance_rate is not None)
        tokens = self._sample(rows, drawn, step)
        if self._acceptance_rate is not None:
            tokens = with_synthetic(rows, tokens, self._acceptance_rate)
        sampled: dict[str, SampledToken] = {}
        further: dict[str, tuple[SampledToken, ...]] = {}
        first = 0
        for seq in seqs:
            sampled[seq.request_id] = tokens[first]
            if accepted := accepted_tokens(seq, tokens[first : first + 1 + seq.num_drafts]):
                further[seq.request_id] = accepted
            first += 1 + seq.num_drafts
        return sampled, further

    def _sample(self, seqs: Sequence[ScheduledSeq], drawn: Sequence[int], step: int) -> list[SampledToken]:
        """Return the token of each row of `seqs`; `drawn` tokens of its sequence were generated before."""
        if not seqs:
            return []
        faults = self._masks.fill(seqs)
        self._drawn[: len(seqs)] = drawn
        raw: dict[int, RawLogprobs] = {}
        for i, seq in enumerate(seqs):
            if seq.sampling is not self._of_rows[i]:
                self._set_row(i, seq.sampling)
            if self._looks_at_logits[i]:
                self._prepare(i, seq, raw)
        self._pool.run(self.program, step)
        chosen = self._chosen[: len(seqs)].tolist()
        tokens = [SampledToken(token) for token in chosen]
        for i, logprobs in raw.items():
            if chosen[i] >= 0:
                tokens[i] = SampledToken(chosen[i], logprobs=logprobs.of(chosen[i]))
        for i, fault in ({i: NOT_A_NUMBER for i, token in enumerate(chosen) if token < 0} | faults).items():
            tokens[i] = SampledToken(-1, error=fault)
        return tokens

    def _set_row(self, i: int, sampling: SamplingParams) -> None:
        """Set the parameters of a row. A row mostly keeps its sequence from step to step, so this is rare."""
        self._of_rows[i] = sampling
        self._looks_at_logits[i] = sampling.logprobs is not None or changes_logits(sampling)
        self._temperature[i] = sampling.temperature
        self._top_k[i] = sampling.top_k
        self._top_p[i] = sampling.top_p
        self._min_p[i] = sampling.min_p
        self._seed[i] = sampling.seed

    def _prepare(self, i: int, seq: ScheduledSeq, raw: dict[int, RawLogprobs]) -> None:
        """Note the log-probabilities of row `i` in `raw` if its request wants them, then adjust its logits."""
        row = self.logits[i, : self.num_ids]
        if seq.sampling.logprobs is not None and np.isfinite(row).all():
            self._masks.forbid(i, row)
            raw[i] = RawLogprobs(row, seq.sampling.logprobs, seq.sampling.logprob_token_ids)
        adjust(row, seq)
