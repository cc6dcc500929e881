"""Bytes that a model needs on each core: one arithmetic for the refusal before loading and for the loading itself.

Formulas only; nothing is reserved here. Everything is counted as it is stored: padded to tiles, KV heads replicated.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.config import Dtype, KVCacheDtype, Quantization, WeightFormats
from server.device.hbm import ALIGNMENT
from server.device.layout import FLOAT32_BYTES, N_TILE, round_up, vector_bytes
from server.device.ledger import MIB, Use
from server.models.decoder import decoder_graph
from server.models.ops import Add, AddRows, HeadNorm, LayerNorm, Linear, Norm, Op, StreamNorm
from server.models.spec import ModelSpec
from server.placement.cache_layout import AttentionSizes, kv_block_bytes
from server.placement.matrices import PackedShape, Widths
from server.placement.shard import ShardSpec

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float32": 4}

# What the real runtime keeps on a core besides the model, from the one published breakdown (optimum-neuron 6373c379,
# Llama-3.1-8B TP8, rank 0; its "MB" are MiB, as its KV line shows): DMA rings 392, NEFF 319, and with more than one
# core 472 for collectives. The 96 MB of microcode of SDK device-memory.rst are model code and so part of the NEFF line:
# the lines leave 7 MB of the published total. Taken for every core and part, since no other breakdown is published.
RUNTIME_BYTES = (392 + 319) * MIB
COLLECTIVES_BYTES = 472 * MIB

# One attention score of the compiled graph of a prompt. The same source gives its scratchpad as 4 x length^2 x 2 bytes,
# 4 being the query heads of a core there, and that above 32K tokens it runs out: one layer's scores at a time.
SCORE_BYTES = 2


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step a program must hold."""

    num_tokens: int
    num_samples: int
    num_workers: int


@dataclass(frozen=True, slots=True)
class ServingShape:
    """Everything besides the model that decides how much memory is needed."""

    dtype: Dtype
    max_model_len: int
    block_size: int
    limits: StepLimits
    quantization: Quantization | None = None
    modules_to_not_convert: tuple[str, ...] = ()
    kv_cache_dtype: KVCacheDtype | None = None  # None = dtype

    @property
    def kv_dtype(self) -> KVCacheDtype:
        return self.kv_cache_dtype or self.dtype

    @property
    def formats(self) -> WeightFormats:
        return WeightFormats(self.dtype, self.quantization, self.modules_to_not_convert)

    @property
    def cell_bytes(self) -> int:
        """Largest size of one element of a panel."""
        return DTYPE_BYTES[self.dtype]

    @property
    def min_blocks(self) -> int:
        """Blocks of one sequence of the full length, and the null block."""
        return -(-self.max_model_len // self.block_size) + 1


def weight_bytes(model: ModelSpec, shard: ShardSpec, formats: WeightFormats) -> int:
    """Packed matrices, and float32 vectors, on the fullest core."""
    graph, w = decoder_graph(model), Widths.of(model, shard)
    embedding = 0 if model.is_tied else w.vocab * w.hidden * DTYPE_BYTES[formats.dtype]
    counted = graph.counted(by_name=bool(formats.modules_to_not_convert))
    return embedding + sum(_op_bytes(op, w, formats) * count for op, count in counted)


def _op_bytes(op: Op, widths: Widths, formats: WeightFormats) -> int:
    """Bytes of one op on the fullest core; replicated vectors are padded to the width that they are added to."""
    match op:
        case Linear():
            shape = PackedShape.of(op, widths)
            return shape.num_bytes(formats) + (vector_bytes(shape.n) if op.has_bias else 0)
        case Norm() | Add(norm=Norm()) | LayerNorm(bias=None):
            return vector_bytes(widths.hidden)
        case LayerNorm():
            return 2 * vector_bytes(widths.hidden)
        case StreamNorm(norm=norm):
            return _op_bytes(norm, widths, formats)
        case AddRows(part=part):
            return part.outputs.size * widths.hidden * DTYPE_BYTES[formats.dtype]
        case HeadNorm(query=query, key=key):
            return vector_bytes(query.size) + vector_bytes(key.size)
        case _:
            return 0


@dataclass(frozen=True, slots=True)
class ActivationSizes:
    """Bytes of every activation buffer. `shared` ones would be replicated on each core; the host keeps one copy."""

    rows: int
    attention: AttentionSizes
    hidden: int
    normed: int
    partial: int  # of one core
    sampled: int
    logits: int  # of all cores
    tables: int  # cos and sin of each rope, and the query range of each KV head (two int32)
    worker_scratch: int  # of one worker: attention rows, a normed row, weights on their way to bfloat16
    qkv: int
    queries: int  # bfloat16 rows
    attended: int  # float32 rows
    attended_panels: int
    activated: int
    activated_panels: int
    row_scales: int

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, shape: ServingShape) -> ActivationSizes:
        w, limits, cell = Widths.of(model, shard), shape.limits, shape.cell_bytes
        rows, samples = round_up(limits.num_tokens, N_TILE), round_up(limits.num_samples, N_TILE)
        attention = AttentionSizes.of(model, shard, shape.max_model_len, limits.num_workers)
        longest_k = max(w.hidden, w.attended, w.intermediate)
        return cls(
            rows=rows,
            attention=attention,
            hidden=rows * w.hidden * FLOAT32_BYTES,
            normed=rows * w.hidden * cell,
            partial=rows * w.hidden * FLOAT32_BYTES,
            sampled=samples * w.hidden * cell,
            logits=samples * shard.tp * w.vocab * FLOAT32_BYTES,
            tables=2 * len(model.distinct_ropes) * vector_bytes(shape.max_model_len * (model.head_dim // 2))
            + vector_bytes(2 * shard.kv_heads_per_core),
            worker_scratch=round_up(
                max(
                    attention.worker_scratch,
                    w.hidden * FLOAT32_BYTES,
                    2 * N_TILE * longest_k * DTYPE_BYTES["bfloat16"],
                ),
                64,
            ),
            qkv=rows * w.qkv * FLOAT32_BYTES,
            queries=rows * w.attended * DTYPE_BYTES["bfloat16"],
            attended=rows * w.attended * FLOAT32_BYTES,
            attended_panels=rows * w.attended * cell,
            activated=rows * w.intermediate * FLOAT32_BYTES,
            activated_panels=rows * w.intermediate * cell,
            row_scales=vector_bytes(max(rows, samples)),
        )

    def scratchpad(self, num_workers: int) -> int:
        """Bytes on core 0, which also holds the shared buffers."""
        shared = self.hidden + self.normed + self.sampled + self.logits + self.tables + self.row_scales
        own = self.qkv + self.queries + self.attended + self.attended_panels + self.activated + self.activated_panels
        divided = round_up(self.attention.partials, ALIGNMENT) + self.attention.arrivals
        return shared + own + self.row_scales + num_workers * self.worker_scratch + divided


def score_bytes(shard: ShardSpec, limits: StepLimits) -> int:
    """Attention scores of one layer that the compiled graph of the longest step keeps on a core: heads x tokens^2.

    The host's kernels need none of it: it is entered in the ledger and never written.
    """
    return shard.heads_per_core * limits.num_tokens**2 * SCORE_BYTES


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes on the fullest core, without KV, and what each KV block adds."""

    fixed: dict[Use, int]
    kv_block: int
    min_blocks: int

    @classmethod
    def of(cls, model: ModelSpec, tp: int, shape: ServingShape) -> Footprint:
        """Raises DeviceError when `tp` is below 1."""
        shard = ShardSpec.of(model, tp)
        sizes = ActivationSizes.of(model, shard, shape)
        fixed: dict[Use, int] = {
            "weights": weight_bytes(model, shard, shape.formats),
            "scratchpad": sizes.scratchpad(shape.limits.num_workers) + score_bytes(shard, shape.limits),
            "collectives": tp * sizes.partial + (COLLECTIVES_BYTES if tp > 1 else 0),
            "runtime": RUNTIME_BYTES,
        }
        block = kv_block_bytes(model, shard, shape.kv_dtype, shape.block_size)
        return cls(fixed, block, shape.min_blocks)

    def with_kv(self, num_blocks: int) -> dict[Use, int]:
        """Bytes by use with `num_blocks` KV blocks."""
        return {**self.fixed, "kv": num_blocks * self.kv_block}

    def max_blocks(self, budget_bytes: int) -> int:
        """KV blocks that fit beside the rest; may be negative."""
        return (budget_bytes - sum(self.fixed.values())) // self.kv_block

    def fits(self, budget_bytes: int) -> bool:
        """True when the model can serve one sequence of full length."""
        return self.max_blocks(budget_bytes) >= self.min_blocks
