"""How many bytes a model needs on each core: one arithmetic for the refusal before loading and for the loading itself.

Formulas only; nothing is reserved here. Everything is counted as it is stored: padded to tiles, KV heads replicated.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.config import Dtype, ModelSpec
from server.device.hbm import ALIGNMENT
from server.device.layout import K_TILE, N_TILE, round_up
from server.device.ledger import MIB, Use
from server.device.shard import ShardSpec

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float32": 4}
FLOAT32_BYTES = 4
ATTENTION_ROWS = 64  # (token, head) rows of one attention tile

# What the real runtime keeps on a core besides the model, from the one published breakdown (optimum-neuron 6373c379,
# Llama-3.1-8B TP8, rank 0; its "MB" are MiB, as its KV line shows): DMA rings 392, NEFF 319, and with more than one
# core 472 for collectives. The 96 MB of microcode of SDK device-memory.rst are model code and so part of the NEFF line:
# the lines leave 7 MB of the published total. Taken for every core and part, since no other breakdown is published.
RUNTIME_BYTES = (392 + 319) * MIB
COLLECTIVES_BYTES = 472 * MIB


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

    @property
    def cell_bytes(self) -> int:
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
            hidden=round_up(model.hidden_size, K_TILE),
            qkv=round_up(heads * model.head_dim, N_TILE),
            attended=round_up(shard.heads_per_core * model.head_dim, K_TILE),
            intermediate=shard.intermediate_per_core,
            vocab=shard.vocab_per_core,
            head=round_up(model.head_dim, N_TILE),
        )


def weight_bytes(model: ModelSpec, shard: ShardSpec, cell_bytes: int) -> int:
    """Packed matrices and float32 vectors on the fullest core."""
    w = Widths.of(model, shard)
    layer = w.hidden * (w.qkv + w.attended + 3 * w.intermediate) * cell_bytes
    vectors = _float32_bytes(w.hidden) * (2 + model.has_o_bias) + _float32_bytes(w.qkv) * model.has_qkv_bias
    vectors += 2 * _float32_bytes(model.head_dim) * model.has_qk_norm
    embeddings = w.vocab * w.hidden * cell_bytes * (1 if model.is_tied else 2)
    return model.num_layers * (layer + vectors) + embeddings + _float32_bytes(w.hidden)


def _float32_bytes(num_values: int) -> int:
    """Bytes of one buffer of `num_values`, as a core hands it out: in whole cache lines."""
    return round_up(num_values * FLOAT32_BYTES, ALIGNMENT)


def kv_block_bytes(model: ModelSpec, shard: ShardSpec, cell_bytes: int, block_size: int) -> int:
    """K and V of one block over all layers, on one core."""
    head = round_up(model.head_dim, N_TILE)
    return 2 * model.num_layers * shard.kv_heads_per_core * head * cell_bytes * block_size


@dataclass(frozen=True, slots=True)
class ActivationSizes:
    """Bytes of every activation buffer. `shared` ones would be replicated on each core; the host keeps one copy."""

    rows: int
    hidden: int
    normed: int
    partial: int  # of one core
    sampled: int
    logits: int  # of all cores
    qkv: int
    attended: int
    gate_up: int
    activated: int
    tables: int  # cos and sin, and the query range of each KV head (two int32)
    attention_scratch: int  # of one worker
    tile_tokens: int

    @classmethod
    def of(cls, model: ModelSpec, shard: ShardSpec, shape: ServingShape) -> ActivationSizes:
        w, limits, cell = Widths.of(model, shard), shape.limits, shape.cell_bytes
        rows, samples = round_up(limits.num_tokens, N_TILE), round_up(limits.num_samples, N_TILE)
        group = max(end - begin for core in range(shard.tp) for begin, end in shard.q_per_kv(core))
        tile_tokens = max(1, ATTENTION_ROWS // group)
        row_bytes = 64 + FLOAT32_BYTES * (shape.block_size + w.head)
        return cls(
            rows=rows,
            hidden=rows * w.hidden * FLOAT32_BYTES,
            normed=rows * w.hidden * cell,
            partial=rows * w.hidden * FLOAT32_BYTES,
            sampled=samples * w.hidden * cell,
            logits=samples * shard.tp * w.vocab * FLOAT32_BYTES,
            qkv=rows * w.qkv * FLOAT32_BYTES,
            attended=rows * w.attended * cell,
            gate_up=rows * 2 * w.intermediate * FLOAT32_BYTES,
            activated=rows * w.intermediate * cell,
            tables=2 * _float32_bytes(shape.max_model_len * (model.head_dim // 2))
            + _float32_bytes(2 * shard.kv_heads_per_core),
            attention_scratch=round_up(round_up(tile_tokens * group, 4) * row_bytes, 64),
            tile_tokens=tile_tokens,
        )

    def scratchpad(self, num_workers: int) -> int:
        """On core 0, which also holds what is shared."""
        shared = self.hidden + self.normed + self.sampled + self.logits + self.tables
        own = self.qkv + self.attended + self.gate_up + self.activated
        return shared + own + num_workers * self.attention_scratch


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
            "weights": weight_bytes(model, shard, shape.cell_bytes),
            "scratchpad": sizes.scratchpad(shape.limits.num_workers),
            "collectives": tp * sizes.partial + (COLLECTIVES_BYTES if tp > 1 else 0),
            "runtime": RUNTIME_BYTES,
        }
        block = kv_block_bytes(model, shard, shape.cell_bytes, shape.block_size)
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
