"""Times of the tokens of a transcript that a prompt ends with, by the attention of chosen heads to the sound.

The prompt goes through the decoder once more, in programs that end behind each layer with such heads: the layer's
queries are in their buffer then, and the keys are in the blocks of the encoding. Other steps cost nothing more.
Source of the times: `_extract_token_timestamps` of transformers' Whisper, whose ties and rounding these have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...config.formats import KVCacheDtype
from ...device.layout import N_TILE, round_up
from ...kernels.compilation import compile_kernels
from ...kernels.program import Program
from ...kernels.workers import WorkerPool
from ...models.decoder import decoder_graph
from ...models.linear import Axis, Linear
from ...placement.cache_layout import kv_head_bytes
from ...types import ScheduledSeq, StepPlan, StepResult
from ..graph_slice import GraphSlice
from ..load.weights import OnProgress
from ..lowering import build_program
from ..operands import Placement
from ..step_inputs import StepInputs
from .lowering import shared_kernels_of

Float32 = npt.NDArray[np.float32]
SECONDS_PER_POSITION, FILTER_WIDTH = 0.02, 7  # of the encoder; positions of which a median is taken
_FLOAT8, _BFLOAT16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
_CELLS: dict[KVCacheDtype, npt.DTypeLike] = {"float32": "f4", "bfloat16": _BFLOAT16, "int8": "i1", "fp8": _FLOAT8}


class Aligner:
    """Implements neuronserve.server.engine.runner.Around."""

    def __init__(self, at: Placement, pool: WorkerPool, inputs: StepInputs, on_progress: OnProgress) -> None:
        """Align with the decoder at `at`, on the threads and the inputs of its runner; compile the kernels."""
        self._at, self._pool, self._inputs = at, pool, inputs
        self._heads, self._head_dim = Axis("query", at.spec.num_heads, heads=at.spec.attention.heads), at.spec.head_dim
        self._is_paired = "pairs" in shared_kernels_of(at, self._head_dim).rope_kv.name
        self._parts_of: Callable[[tuple[int, ...]], list[Program]] = cache(self._parts)
        kernels = [kernel for part in self._parts(tuple(range(at.spec.num_layers))) for kernel in part.kernels]
        compile_kernels(kernels, on_progress, pool.num_threads)

    def __call__(self, plan: StepPlan, compute: Callable[[StepPlan], StepResult]) -> StepResult:
        """Compute `plan`, then the times of the transcripts whose prompts end with it."""
        result, begin = compute(plan), time.perf_counter()
        sampled = dict(result.sampled)
        for seq in plan.seqs:
            if seq.needs_sample and seq.sampling.transcript and seq.sampling.transcript.aligned_heads:
                sampled[seq.request_id] = sampled[seq.request_id]._replace(row=self._times(seq).tobytes())
        return result._replace(sampled=sampled, seconds=result.seconds + time.perf_counter() - begin)

    def _parts(self, layers: tuple[int, ...]) -> list[Program]:
        """Return programs that follow one another, each up to the end of one of `layers`, in order."""
        begins = (0, *(layer + 1 for layer in layers[:-1]))
        slices = [
            GraphSlice(range(begin, last + 1), not begin, "stream") for begin, last in zip(begins, layers, strict=True)
        ]
        return [build_program(self._at, part=each) for each in slices]

    def _times(self, seq: ScheduledSeq) -> Float32:
        """Return the seconds of each token of a prompt, from the first that is wanted on."""
        tokens, most = seq.history[: seq.num_prompt_tokens], len(self._inputs.token_ids)
        wanted = seq.sampling.transcript
        assert wanted is not None
        layers, (first, positions) = tuple(sorted({layer for layer, _ in wanted.aligned_heads})), wanted.aligned
        weights: list[Float32] = []  # of each part of the prompt, [heads, tokens, positions]
        for start in range(0, len(tokens), most):
            part = seq._replace(token_ids=tuple(tokens[start : start + most]), start=start, needs_sample=False)
            self._inputs.fill([part])
            found: list[Float32] = []
            for layer, program in zip(layers, self._parts_of(layers), strict=True):
                self._pool.run(program, self._inputs.address)
                found += [self._weights(layer, head, part) for at, head in wanted.aligned_heads if at == layer]
            weights.append(np.stack(found))
        return token_times(np.concatenate(weights, axis=1)[:, first:, :positions])

    def _weights(self, layer: int, head: int, seq: ScheduledSeq) -> Float32:
        """Return the weights of a head, [tokens, positions], when the program of its layer has just run."""
        every = ((core, run) for core in range(self._at.shard.tp) for run in self._at.shard.runs(self._heads, core))
        core, slot = next(
            (core, run.slot + head - run.first) for core, run in every if head - run.first in range(run.length)
        )
        linear = next(
            op for op in decoder_graph(self._at.spec).layers[layer] if isinstance(op, Linear) and op.name == "cross q"
        )
        rows = self._at.buffers.qkv[core].array(np.float32, -1, self._at.weights.matrix(linear).n)
        queries = rows[: len(seq.token_ids), slot * self._head_dim : (slot + 1) * self._head_dim]
        scores = queries @ self._keys(layer, core, slot, seq.encoded)[: sum(item.num_tokens for item in seq.media)].T
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights: Float32 = powers / powers.sum(axis=1, keepdims=True)
        return weights

    def _keys(self, layer: int, core: int, slot: int, blocks: Sequence[int]) -> Float32:
        """Return the keys of a head in `blocks`, [positions, head_dim]; kernels/attention/rope.py has their layout."""
        kv, size, cell = self._at.kv, self._at.cache.block_size, np.dtype(_CELLS[self._at.kv_dtype])
        length, width = kv_head_bytes(self._head_dim, self._at.kv_dtype, size), round_up(self._head_dim, N_TILE)
        block_bytes = kv.tensors[core][kv.num_tensors * kv.place(layer).slot][list(blocks)]
        own = np.ascontiguousarray(block_bytes[:, slot * length : (slot + 1) * length])
        codes = np.ascontiguousarray(own[:, : width * size * cell.itemsize]).view(cell).astype(np.float32)
        pairs = codes.reshape(len(codes), -1, size, 2 if self._is_paired else 1)
        keys: Float32 = pairs.transpose(0, 2, 1, 3).reshape(len(codes) * size, width)[:, : self._head_dim]
        return (
            keys if cell.itemsize > 1 else keys * np.ascontiguousarray(own[:, width * size :]).view("f4").reshape(-1, 1)
        )


def token_times(weights: Float32) -> Float32:
    """Return the seconds at which each token begins, by dynamic time warping of weights [heads, tokens, positions]."""
    spread = np.maximum(weights.std(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    normed, beside = (weights - weights.mean(axis=1, keepdims=True)) / spread, FILTER_WIDTH // 2
    if weights.shape[-1] > beside:  # medians of neighbours, mirrored at the ends
        padded = np.pad(normed, ((0, 0), (0, 0), (beside, beside)), mode="reflect")
        normed = np.median(np.lib.stride_tricks.sliding_window_view(padded, FILTER_WIDTH, axis=-1), axis=-1)
    costs = -normed.mean(axis=0)
    tokens, positions = costs.shape
    total = np.full((tokens + 1, positions + 1), np.inf, np.float32)
    steps = np.full((tokens + 1, positions + 1), 2, np.int8)  # 0: the next token and position; 1: token; 2: position
    total[0, 0] = 0.0
    for diagonal in range(2, tokens + positions + 1):  # its cells depend on the two diagonals before alone
        i = np.arange(max(1, diagonal - positions), min(tokens, diagonal - 1) + 1)
        j = diagonal - i
        both, token, position = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        first = (both < token) & (both < position)
        steps[i, j] = step = np.where(first, 0, np.where((token < both) & (token < position), 1, 2))
        total[i, j] = costs[i - 1, j - 1] + np.choose(step, (both, token, position))
    times, row, column = np.zeros(tokens, np.float32), tokens, positions
    while row > 0:
        times[row - 1] = (column - 1) * SECONDS_PER_POSITION
        row, column = row - int(steps[row, column] != 2), column - int(steps[row, column] != 1)
    return times
