"""One core's share of a model under NxD Inference: heads, weights, attention scores and LoRA adapters, in bytes.

This is the accelerator's account. The emulator's tiles and copies are in shard.py, matrices.py and host_footprint.py.
Source, unless said otherwise: github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54b (2026-07-28).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ..config.formats import Dtype, WeightFormats
from ..device.layout import FLOAT32_BYTES, is_grouped, is_scaled, scale_bytes, tile_bytes
from ..models.decoder import decoder_graph, graphs
from ..models.graph import flat_ops, is_output
from ..models.linear import NO_HEADS, Axis, HeadCounts, Linear
from ..models.ops import (
    Add,
    AddRows,
    Attention,
    Embed,
    Norm,
    NormOutput,
    Op,
    StreamNorm,
)
from ..models.spec import ModelSpec
from ..models.state_ops import Convolution, GatedNorm, Recurrence
from ..models.tensors import op_vectors
from .shard import require_degree

DTYPE_BYTES: dict[Dtype, int] = {"bfloat16": 2, "float32": 4}

# Bytes of one attention score. In optimum-neuron 6373c379, benchmark/vllm, memory_capacity_analysis, the scratchpad for
# the scores of a prompt is (heads of a core) x length^2 x 2 bytes: of one layer at a time.
SCORE_BYTES = 2

# The largest head that the flash attention kernel takes: optimum-neuron 6373c379, backend/modules/attention.
FLASH_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class CoreShare:
    """Share of each core. Sizes are padded to the next multiple of the degree (ColumnParallelLinear)."""

    tp: int
    query_heads: int
    kv_heads: int

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> CoreShare:
        """Divide heads as modules/attention/gqa, get_shardable_head_counts. Raises DeviceError when `tp` is below 1.

        KV heads are divided if the degree divides them, copied to every core if the degree is a multiple of them
        (REPLICATE_TO_TP_DEGREE), and otherwise become as many as the query heads (CONVERT_TO_MHA).
        """
        require_degree(tp)
        first = next(iter(model.attentions), None)  # a stage may have no layer that attends
        return cls(tp, *(NO_HEADS if first is None else _heads_of(first.heads, tp)))

    def of_heads(self, counts: HeadCounts) -> HeadCounts:
        """Return the heads of one core of a layer that has `counts`."""
        return _heads_of(counts, self.tp)

    def size(self, axis: Axis) -> int:
        """Return the elements of `axis` on one core."""
        if axis.name in ("query", "kv"):
            heads = self.of_heads(axis.heads)
            return (heads.query if axis.name == "query" else heads.kv) * axis.unit_size
        return (-(-axis.units // self.tp) if axis.is_split else axis.units) * axis.unit_size


def _heads_of(counts: HeadCounts, tp: int) -> HeadCounts:
    queries = -(-counts.query // tp)
    if counts.kv % tp == 0:
        return HeadCounts(queries, counts.kv // tp)
    is_copied = counts.kv != counts.query and tp % counts.kv == 0
    return HeadCounts(queries, 1 if is_copied else queries)


@lru_cache(maxsize=256)  # a plan needs it for every batch
def weight_bytes(model: ModelSpec, tp: int, formats: WeightFormats) -> int:
    """Return the bytes of the weights on one core, in the formats that they are served in.

    The embedding is divided along the hidden axis and the output layer along the vocabulary, so a tied model has both
    (models/llama/modeling_llama.py). 8-bit matrices have a float32 scale for each output (models/config.py,
    `quantization_scale_dtype`). Norms and biases are in the model's own type. NxD Inference has no 4-bit matrices, so
    they are counted as they are stored here, with the scales of their groups.
    """
    share = CoreShare.of(model, tp)
    counted = (each for graph in graphs(model) for each in graph.counted(by_name=formats.goes_by_name))
    return sum(_op_bytes(op, share, formats) * count for op, count in counted)


@lru_cache(maxsize=256)
def undivided_bytes(model: ModelSpec, tp: int, formats: WeightFormats) -> int:
    """Return the bytes of the embedding and the output layer that are beyond an even share when a core has them whole.

    So has the first core in optimum-neuron 6373c379, benchmark/vllm, memory_capacity_analysis.
    """
    one, share = CoreShare.of(model, 1), CoreShare.of(model, tp)
    ops = (op for op, _ in decoder_graph(model).counted())
    ends = [op for op in ops if isinstance(op, Embed) or (isinstance(op, Linear) and is_output(op))]
    return sum(_op_bytes(op, one, formats) - _op_bytes(op, share, formats) for op in ends)


def _op_bytes(op: Op, share: CoreShare, formats: WeightFormats) -> int:
    cell = DTYPE_BYTES[formats.dtype]
    match op:
        case Embed(table=table, hidden=hidden, is_shared=False):
            return table.outputs.size * -(-hidden.size // share.tp) * cell
        case Linear():
            return _linear_bytes(op, share, formats)
        case AddRows(table=table, hidden=hidden):
            return table.outputs.size * hidden.size * cell
        case StreamNorm(norm=norm) | NormOutput(norm=norm) | Add(norm=Norm() as norm):
            return _op_bytes(norm, share, formats)
        case _:
            is_split = isinstance(op, Attention | Convolution | Recurrence | GatedNorm)
            return sum(-(-math.prod(each.shape) // (share.tp if is_split else 1)) for each in op_vectors(op)) * cell


def _linear_bytes(linear: Linear, share: CoreShare, formats: WeightFormats) -> int:
    outputs = sum(share.size(part.outputs) for part in linear.parts)
    weights = formats.dtype if linear.is_table else formats.of(*linear.modules, is_output=is_output(linear))
    scales, inputs = outputs * FLOAT32_BYTES if is_scaled(weights) else 0, share.size(linear.inputs)
    if is_grouped(weights):
        scales = sum(scale_bytes(weights, formats.groups, outputs, inputs))
    biases = outputs * DTYPE_BYTES[formats.dtype] if linear.has_bias else 0
    return tile_bytes(weights, outputs, inputs) + scales + biases


def has_flash_attention(head_dim: int, num_tokens: int, lnc: int) -> bool:
    """Return whether a prompt's graph runs the flash attention kernel, which keeps no scores in memory.

    Source: the default of get_flash_attention_strategy in modules/attention/attention_base, and
    trn2-llama3.1-405b-tutorial.rst of the Neuron documentation. `lnc`: physical cores in one logical core.
    """
    if head_dim > FLASH_HEAD_DIM:
        return False
    if lnc == 1:
        return num_tokens >= 4096
    return num_tokens % (512 if num_tokens >= 1024 else 256) == 0


def score_bytes(model: ModelSpec, share: CoreShare, num_tokens: int, lnc: int) -> int:
    """Return the bytes of one layer's attention scores that a prompt of `num_tokens` keeps on a core."""
    if has_flash_attention(model.head_dim, num_tokens, lnc):
        return 0
    return share.query_heads * num_tokens**2 * SCORE_BYTES


def activation_bytes(model: ModelSpec, share: CoreShare, num_tokens: int, num_samples: int, dtype: Dtype) -> int:
    """Return the bytes of the activations of one layer of the largest graph, none of which reuses another's memory.

    They are the residual stream, normed input and reduced branch; several streams; inputs of all layers by token;
    query, key, value and attended heads; both halves of the feed-forward network of every expert of a token; and
    float32 logits, gathered on the core that samples.
    """
    heads = (2 * share.query_heads + 2 * share.kv_heads) * model.head_dim
    networks = 1 if model.experts is None else model.experts.per_token
    inner = 2 * networks * -(-model.widest_intermediate // share.tp)
    rows = ((3 + model.num_streams) * model.hidden_size + heads + inner + model.input_size) * DTYPE_BYTES[dtype]
    return num_tokens * rows + num_samples * model.vocab_size * FLOAT32_BYTES


# LoRA adapters: modules/lora_serving. Stored adapters are divided over the cores (`lora_shard_linear_layer`, on by
# default). The adapter of a slot is gathered (`weight_active`): the matrix that faces an undivided side, A or B, is
# whole on every core. Adapters have the weights' type, taken as bfloat16. Attention and networks of all tokens have
# them; experts and the output layer have none.
LORA_CELL_BYTES = DTYPE_BYTES["bfloat16"]


@lru_cache(maxsize=256)  # a plan needs it for every batch
def core_lora_weights(model: ModelSpec, tp: int, rank: int) -> int:
    """Return the weights of a slot's adapter on a core. Each module of a fused matrix has its own A and B."""
    share = CoreShare.of(model, tp)
    return rank * sum(
        group.count * (len(op.parts) * share.size(op.inputs) + sum(share.size(part.outputs) for part in op.parts))
        for group in decoder_graph(model).groups
        for op in flat_ops(group.ops)
        if isinstance(op, Linear)
    )


def lora_bytes(model: ModelSpec, tp: int, rank: int, stored: int, slots: int) -> int:
    """Return the bytes on one core of `stored` adapters, and of one gathered adapter for each of `slots` slots."""
    whole = core_lora_weights(model, 1, rank)
    return LORA_CELL_BYTES * (stored * -(-whole // tp) + slots * core_lora_weights(model, tp, rank))
