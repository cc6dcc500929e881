"""The sampler: per-request changes to the logits, grammar masks, then one kernel over all rows of a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from server.device.address_map import ADDRESSES
from server.engine.grammar_masks import GrammarMasks
from server.engine.grammar_store import GrammarStore
from server.engine.logits import RawLogprobs, adjust, changes_logits, num_generated
from server.kernels.program import Program
from server.kernels.records import SampleOperands
from server.kernels.sample.sample import sample, scratch_floats
from server.kernels.workers import WorkerPool
from server.types import SampledToken, ScheduledSeq

NOT_A_NUMBER = "the model's logits are not finite numbers"


class Sampler:
    """Samples in place from one logits array [max_samples, width], whose rows are the sampled sequences in order."""

    def __init__(
        self, pool: WorkerPool, logits: npt.NDArray[np.float32], vocab_size: int, grammars: GrammarStore | None = None
    ) -> None:
        """`grammars` None: no request may have one."""
        self._pool, self.logits, self.vocab_size = pool, logits, vocab_size
        self._masks = GrammarMasks(grammars, len(logits), vocab_size)
        rows, width = logits.shape
        self._scratch = np.zeros((pool.num_threads, scratch_floats(width)), np.float32)
        self._temperature, self._top_p, self._min_p = (np.zeros(rows, np.float32) for _ in range(3))
        self._top_k, self._seed, self._drawn, self._chosen = (np.zeros(rows, np.int64) for _ in range(4))
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
            vocab=self.vocab_size,
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

    def __call__(self, seqs: Sequence[ScheduledSeq], step: int) -> dict[str, SampledToken]:
        """Sample one token for each of `seqs`; `step` is the address of the step record that made the logits."""
        if not seqs:
            return {}
        raw: dict[int, RawLogprobs] = {}
        faults = self._masks.fill(seqs)
        for i, seq in enumerate(seqs):
            self._set_row(i, seq)
            row = self.logits[i, : self.vocab_size]
            if seq.sampling.logprobs is not None and np.isfinite(row).all():
                self._masks.forbid(i, row)
                raw[i] = RawLogprobs(row, seq.sampling.logprobs, seq.sampling.logprob_token_ids)
            if changes_logits(seq):
                adjust(row, seq)
        self._pool.run(self.program, step)
        sampled = {seq.request_id: self._token(i, raw.get(i)) for i, seq in enumerate(seqs)}
        for i, fault in faults.items():
            sampled[seqs[i].request_id] = SampledToken(-1, error=fault)
        return sampled

    def _set_row(self, i: int, seq: ScheduledSeq) -> None:
        sampling = seq.sampling
        self._temperature[i] = sampling.temperature
        self._top_k[i] = sampling.top_k
        self._top_p[i] = sampling.top_p
        self._min_p[i] = sampling.min_p
        self._seed[i] = sampling.seed
        self._drawn[i] = num_generated(seq)

    def _token(self, i: int, raw: RawLogprobs | None) -> SampledToken:
        token = int(self._chosen[i])
        if token < 0:
            return SampledToken(token, error=NOT_A_NUMBER)
        return SampledToken(token, logprobs=raw.of(token) if raw else None)
