"""How many bytes a model needs on each core: one arithmetic for the refusal before loading and for the loading itself.

Formulas only; nothing is reserved here. Everything is counted as it is stored: padded to tiles, KV heads replicated.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.config import Dtype, KVCacheDtype, ModelSpec, Quantization, WeightFormats
from server.device.attention_layout import AttentionSizes, kv_block_bytes
from server.device.hbm import ALIGNMENT
from server.device.layout import K_MULTIPLE, N_TILE, WEIGHT_BYTES, is_scaled, round_up
from server.device.ledger import MIB, Use
from server.device.shard import ShardSpec

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float32": 4}
FLOAT32_BYTES = 4

# What the real runtime keeps on a core besides the model, from the one published breakdown (optimum-neuron 6373c379,
# Llama-3.1-8B TP8, rank 0; its "MB" are MiB, as its KV line shows): DMA rings 392, NEFF 319, and with more than one
# core 472 for collectives. The 96 MB of microcode of SDK device-memory.rst are model code and so part of the NEFF line:
# the lines leave 7 MB of the published total. Taken for every core and part, since no other breakdown is published.
RUNTIME_BYTES = (392 + 319) * MIB
COLLECTIVES_BYTES = 472 * MIB

# One attention score of the compiled graph of a prompt. The same source gives its scratchpad as 4 x length^2 x 2 bytes,
# 4 being the query heads of a core there, and says that above 32K tokens it runs out: one layer's scores at a time.
SCORE_BYTES = 2


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step a program must hold."""

    num_tokens: int
    num_samples: int
    num_workers: int


@dataclass(frozen=True, slots=True)
class ServingShape:
    """What besides the model decides how much memory is needed."""

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
        """Of one element of a panel at most."""
        return DTYPE_BYTES[self.dtype]

    @property
    def min_blocks(self) -> int:
        """One sequence of the full length, and the null block."""
        return -(-self.max_model_len // self.block_size) + 1


@dataclass(frozen=True, slots=True)
class Widths:
    """Padded widths, in elements, of the matrices and activations on one core."""

    hidden: int
    qkv: int
    attended: int
    intermediate: int
    vocab: int
    head: int

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec) -> Widths:
        heads = shard.heads_per_core + 2 * shard.kv_heads_per_core
        return cls(
            hidden=round_up(model.hidden_size, K_MULTIPLE),
            qkv=round_up(heads * model.head_dim, N_TILE),
            attended=round_up(shard.heads_per_core * model.head_dim, K_MULTIPLE),
            intermediate=round_up(shard.intermediate_per_core, K_MULTIPLE),
            vocab=shard.vocab_per_core,
            head=round_up(model.head_dim, N_TILE),
        )


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """One packed matrix on one core: padded to tiles, in the format of the modules it is made of."""

    modules: tuple[str, ...]  # as the checkpoint names them
    n: int
    k: int

    def num_bytes(self, formats: WeightFormats) -> int:
        """Tiles, and for each column of an 8-bit format a scale and a sum."""
        weights = formats.of(*self.modules)
        columns = 2 * _float32_bytes(self.n) if is_scaled(weights) else 0
        return self.n * self.k * WEIGHT_BYTES[weights] + columns


def layer_matrices(model: ModelSpec, shard: ShardSpec, layer: int) -> dict[str, MatrixShape]:
    """The four matrices of a layer, by what they compute."""
    w, prefix = Widths.of(model, shard), f"model.layers.{layer}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    return {
        "qkv": MatrixShape(tuple(f"{attention}{x}_proj" for x in "qkv"), w.qkv, w.hidden),
        "o": MatrixShape((f"{attention}o_proj",), w.hidden, w.attended),
        "gate_up": MatrixShape((f"{mlp}gate_proj", f"{mlp}up_proj"), 2 * w.intermediate, w.hidden),
        "down": MatrixShape((f"{mlp}down_proj",), w.hidden, w.intermediate),
    }


def head_matrix(model: ModelSpec, shard: ShardSpec) -> MatrixShape:
    """The output layer."""
    w = Widths.of(model, shard)
    return MatrixShape(("lm_head",), w.vocab, w.hidden)


def weight_bytes(model: ModelSpec, shard: ShardSpec, formats: WeightFormats) -> int:
    """Packed matrices, and float32 vectors, on the fullest core."""
    w = Widths.of(model, shard)
    layers = range(model.num_layers)
    matrices = [matrix for i in layers for matrix in layer_matrices(model, shard, i).values()]
    total = sum(matrix.num_bytes(formats) for matrix in [*matrices, head_matrix(model, shard)])
    vectors = _float32_bytes(w.hidden) * (2 + model.has_o_bias) + _float32_bytes(w.qkv) * model.has_qkv_bias
    vectors += 2 * _float32_bytes(model.head_dim) * model.has_qk_norm
    embedding = 0 if model.is_tied else w.vocab * w.hidden * DTYPE_BYTES[formats.dtype]
    return total + model.num_layers * vectors + embedding + _float32_bytes(w.hidden)


def _float32_bytes(num_values: int) -> int:
    """Bytes of one buffer of `num_values`, as a core hands it out: in whole cache lines."""
    return round_up(num_values * FLOAT32_BYTES, ALIGNMENT)


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
    tables: int  # cos and sin, and the query range of each KV head (two int32)
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
            tables=2 * _float32_bytes(shape.max_model_len * (model.head_dim // 2))
            + _float32_bytes(2 * shard.kv_heads_per_core),
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
            row_scales=_float32_bytes(max(rows, samples)),
        )

    def scratchpad(self, num_workers: int) -> int:
        """On core 0, which also holds what is shared."""
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
        """Whether the model can serve one sequence of full length."""
        return self.max_blocks(budget_bytes) >= self.min_blocks
