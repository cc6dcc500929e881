"""Dimensions of a model's shares on the cores, for the cost model. No times.

"Per core" means the fullest core of a tensor-parallel group, padding included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from ..config.formats import Dtype, Quantization
from ..models.decoder import decoder_graph
from ..models.graph import flat_ops, is_output
from ..models.layer import AttentionSpec
from ..models.linear import AxisName, Linear
from ..models.ops import CrossAttention, Experts, Network
from ..models.spec import ModelSpec
from ..models.state_layer import GatedDeltaNetSpec, ShortConvSpec
from ..placement.core_share import CoreShare
from ..placement.state_layout import core_slot_bytes, state_layers

# Bytes of one stored weight. Types of eight bits and fewer are only storage on these chips (SDK data-types.rst): values
# are widened to bfloat16 before the matmul.
STORED_BYTES: dict[str, float] = {
    "float32": 4,
    "fp32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "int8": 1,
    "fp8": 1,
    "int8-groups": 1 + 2 / 32,  # with a float16 scale for each 32
    "mxfp8": 1 + 1 / 32,  # with an E8M0 scale for each 32
    "int4": 0.5 + 2 / 32,  # with a float16 scale for each 32
    "mxfp4": 0.5 + 1 / 32,  # with an E8M0 scale for each 32
}
ACTIVATION_BYTES = 2  # bfloat16, of activations on the links and of the KV cache
TILE = 128  # rows and columns of the systolic array (trainium_inferentia2_arch.rst)


def stored_dtype(quantization: Quantization | None, dtype: Dtype) -> str:
    """Return the key of STORED_BYTES for weights in these formats. All 8-bit types without groups count as int8."""
    if quantization is None:
        return dtype
    return quantization if quantization in STORED_BYTES else "int8"


# Published times of such models take part in no fit: Neuron's software has no such layer, and each port its own.
STATE_REASON = "no fit saw a layer that keeps a state"
HEADS_REASON = "no fit saw layers with heads or inputs of their own"


def unfitted(model: ModelSpec) -> str:
    """Return why the fits saw no layers like some of the model's; empty if they did."""
    if model.state_mixer is not None:
        return STATE_REASON
    heads = {(*each.heads, each.head_dim) for each in model.attentions}
    return HEADS_REASON if len(heads) > 1 or model.layer_input is not None else ""


def matrix_params(model: ModelSpec) -> int:
    """Return the weights of the model's matrices. An output layer counts even if tied; routers are left out."""
    graph = decoder_graph(model)
    counted = ((op, count) for op, count in graph.counted(is_computed=True) if isinstance(op, Linear))
    routed = sum(linear.num_weights * count for linear, count in counted if not _joins(linear, "experts"))
    return routed + graph.embed.table.outputs.size * graph.embed.hidden.size


@lru_cache(maxsize=256)
def matrix_billions(model: ModelSpec) -> float:
    """Return the billions of weights in the matrices of `model`."""
    return matrix_params(model) / 1e9


# Architectures whose cache holds only a window: GptOssKVCacheManager, and `sliding_window` and
# `layer_to_cache_size_mapping` of KVCacheManager, of neuronx-distributed-inference at 4bcdc54b. Others read all.
WINDOWED = ("GptOssForCausalLM", "MistralForCausalLM", "Llama4ForCausalLM", "Llama4ForConditionalGeneration")


@lru_cache(maxsize=256)
def layer_windows(model: ModelSpec) -> tuple[tuple[int, int], ...]:
    """Return pairs of cached positions and layers; 0 positions: the layers cache all."""
    return tuple(Counter(_cached_window(model, each) for each in model.attention_layers).items())


def _cached_window(model: ModelSpec, mixer: AttentionSpec) -> int:
    return mixer.window if model.architecture in WINDOWED else 0


def cached_positions(model: ModelSpec, positions: int) -> int:
    """Return the positions that one sequence of `positions` holds in the cache, summed over the layers."""
    return sum(min(positions, window or positions) * layers for window, layers in layer_windows(model))


@lru_cache(maxsize=256)
def kv_elements(model: ModelSpec, tp: int, positions: int) -> int:
    """Return the elements of K and V on one core that a token of one sequence reads, summed over the layers."""
    share, layers = CoreShare.of(model, tp), Counter(model.attention_layers)
    rows = {each: each.num_tensors * share.of_heads(each.heads).kv * each.head_dim for each in layers}
    return sum(
        min(positions, _cached_window(model, each) or positions) * rows[each] * count for each, count in layers.items()
    )


@lru_cache(maxsize=256)
def pair_products(model: ModelSpec, tp: int) -> int:
    """Return the multiplications of a token's queries with a key and its value on one core, summed over the layers."""
    share = CoreShare.of(model, tp)
    return sum(share.of_heads(each.heads).query * each.products_per_pair for each in model.attention_layers)


@lru_cache(maxsize=256)
def state_bytes(model: ModelSpec, tp: int) -> int:
    """Return the bytes of one sequence's states on one core: convolutions in bfloat16, recurrences in float32."""
    return core_slot_bytes(model, CoreShare.of(model, tp), ACTIVATION_BYTES)


@lru_cache(maxsize=256)
def state_flops(model: ModelSpec, tp: int, chunk: int = 0) -> int:
    """Return one core's operations that update the states of all layers by one token.

    Of each element of a recurrent state: decay, update and output; the delta rule also multiplies it with the key.
    Prompts are computed in chunks, whose tokens also meet each other: their keys, queries and values (arXiv:2412.06464
    of the delta rule, arXiv:2405.21060 of Mamba-2). Of each channel of a convolution: its taps.
    """
    mixer = model.state_mixer
    if mixer is None:
        return 0
    share = CoreShare.of(model, tp)
    flops = 2 * mixer.taps * sum(share.size(axis) for axis in mixer.convolved)
    if not isinstance(mixer, ShortConvSpec):
        keys, values = mixer.key.unit_size, mixer.value.unit_size
        is_delta = isinstance(mixer, GatedDeltaNetSpec)
        within = 3 * keys + 2 * values if is_delta else keys + values
        flops += share.size(mixer.gate) * ((7 if is_delta else 5) * keys * values + 2 * chunk * within)
    return flops * state_layers(model)


@lru_cache(maxsize=256)
def source_weights(model: ModelSpec, tp: int) -> int:
    """Return one core's weights that make keys and values of all layers of an encoder's states; 0 without one."""
    share, ops = CoreShare.of(model, tp), decoder_graph(model).counted()
    return sum(_core_weights(op.keys_values, share) * count for op, count in ops if isinstance(op, CrossAttention))


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    """Equal layers, each with `count` feed-forward networks, of which a token uses `per_token`."""

    layers: int
    weights: int  # of one expert of one layer, on one core
    tiled: int  # weights of all experts of all layers on one core, each matrix padded to tiles
    count: int
    per_token: int

    def gathered(self, tokens: int) -> int:
        """Return the experts of one layer that are fetched one by one: none in a graph that runs through all."""
        fetched = self.fetched(tokens)
        return fetched if fetched < self.count else 0

    def fetched(self, tokens: int) -> int:
        """Return the experts of one layer that a graph for `tokens` tokens fetches: one for each choice, at most all.

        NeuronX Distributed gathers each token's experts while the choices are fewer than the experts, and otherwise
        runs through all experts (`perc_experts_loaded` of its ExpertMLPs).
        """
        return min(self.count, tokens * self.per_token)


@dataclass(frozen=True, slots=True)
class CoreShape:
    """One core's share of a model: numbers of weights over all layers, and heads."""

    tp: int
    attention_weights: int
    ffn_weights: int  # of networks that every token uses
    experts: tuple[ExpertLayers, ...]
    head_weights: int  # of the output layer
    query_heads: int
    kv_heads: int  # stored and read

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> CoreShape:
        """Return a core's share as NxD Inference splits the model. Raises DeviceError when `tp` is below 1."""
        share, graph = CoreShare.of(model, tp), decoder_graph(model)
        attention = ffn = 0
        experts: Counter[tuple[int, int, int, int]] = Counter()
        tail = () if model.is_encoder else graph.tail  # an encoder's pooler computes one row of each text
        ends = (op for op in (*graph.prelude, *tail) if isinstance(op, Linear) and not is_output(op))
        grouped = ((op, group.count) for group in graph.groups for op in flat_ops(group.ops))
        for op, layers in (*((op, 1) for op in ends), *grouped):
            if isinstance(op, Experts):
                sizes = _network_weights(op.first, share), _network_weights(op.first, share, TILE)
                experts[*sizes, op.count, op.per_token] += layers
                ffn += layers * _network_weights(op.shared, share)
            elif isinstance(op, Linear) and _joins(op, "ffn"):
                ffn += layers * _core_weights(op, share)
            elif isinstance(op, Linear):
                attention += layers * _core_weights(op, share)
        return cls(
            tp=tp,
            attention_weights=attention - source_weights(model, tp),  # a pass of the encoder computes with these
            ffn_weights=ffn,
            experts=tuple(
                ExpertLayers(layers, weights, layers * count * tiled, count, chosen)
                for (weights, tiled, count, chosen), layers in experts.items()
            ),
            head_weights=_core_weights(graph.head, share) if graph.has_head else 0,
            query_heads=share.query_heads,
            kv_heads=share.kv_heads,
        )


def _joins(linear: Linear, axis: AxisName) -> bool:
    """Return whether a linear layer reads or writes an axis."""
    return axis in {linear.inputs.name, *(part.outputs.name for part in linear.parts)}


def _network_weights(network: Network, share: CoreShare, tile: int = 1) -> int:
    return sum(_core_weights(op, share, tile) for op in network if isinstance(op, Linear))


def _core_weights(linear: Linear, share: CoreShare, tile: int = 1) -> int:
    """Return one core's weights of a linear layer, with inputs and outputs padded to multiples of `tile`."""
    outputs = sum(_padded(share.size(part.outputs), tile) for part in linear.parts)
    return outputs * _padded(share.size(linear.inputs), tile)


def _padded(size: int, tile: int) -> int:
    return -(-size // tile) * tile
