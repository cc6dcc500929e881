"""The dimensions and options of one transformer, decoder or encoder: all that is needed to size, cost and build it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from neuronserve.server.config import AttentionSpan
from neuronserve.server.models.names import LLAMA, Names

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "swiglu_clamped"]
Routing = Literal["softmax", "softmax_of_chosen", "sigmoid"]
ModelKind = Literal["decoder", "encoder"]
NormKind = Literal["rms", "layer", "layer_no_bias"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: base, and the scaling of its frequencies (names as in Hugging Face configs)."""

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # yarn, longrope: scales cos and sin
    truncate: bool = True  # yarn: round the correction range to whole dimensions
    short_factors: tuple[float, ...] = ()  # longrope: of each pair, for contexts up to original_max_position
    long_factors: tuple[float, ...] = ()  # longrope: of each pair, for longer ones
    partial_factor: float = 1.0  # of a head's elements, the first, are rotated
    is_interleaved: bool = False  # pairs that are turned are neighbours

    def rotary_dim(self, head_dim: int) -> int:
        """How many elements of a head of `head_dim` are rotated."""
        return int(head_dim * self.partial_factor)


@dataclass(frozen=True, slots=True)
class TemperatureSpec:
    """Queries times 1 + scale * log(1 + floor((position + shift) / floor)): sharper, the longer the text is."""

    scale: float
    floor: int  # tokens
    shift: int
    is_of_rotated: bool = False  # of layers that are rotated, instead of those that are not


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model. families/ read it from a config.json, planned.py for planning alone; decoder.py makes its graph."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int  # of one expert where there are several
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float = 1e-6
    rope: RopeSpec = RopeSpec()
    ropes: tuple[RopeSpec | None, ...] = ()  # of each layer, None = no rotation; () = `rope` on all
    windows: tuple[int, ...] = ()  # sliding window of each layer in tokens, 0 = full; () = all full
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False  # attention and feed-forward outputs are normed before they are added
    norm_offset: float = 0.0  # added to the weights of norms: some checkpoints store w of (1 + w)
    attention_scale: float | None = None  # of scores; None = head_dim ** -0.5
    embedding_scale: float = 1.0  # embeddings are multiplied by it
    residual_scale: float = 1.0  # what attention and feed-forward leave is multiplied by it
    score_cap: float = 0.0  # scores are held below it by a hyperbolic tangent; 0 = none
    logit_scale: float = 1.0  # logits are multiplied by it
    logit_cap: float = 0.0  # logits are held below it as scores are
    has_sinks: bool = False  # each query head has a key without a value, whose score is learned
    is_chunked: bool = False  # windows are chunks that begin at multiples of their size
    has_wide_qk_norm: bool = False  # queries and keys are normed over all heads together
    has_plain_qk_norm: bool = False  # query and key heads of rotated layers are normed, without weights
    temperature: TemperatureSpec | None = None  # of queries
    has_layer_qk_norm: bool = False  # each query head and key head has a LayerNorm of its own
    has_pre_norms: bool = True  # attention and feed-forward read the normed stream
    activation: Activation = "silu"
    is_gated: bool = True  # act(gate) * up; otherwise act(up)
    num_experts: int = 0  # feed-forward networks to choose from in each layer; 0 = one, no choice
    experts_per_token: int = 0
    routing: Routing = "softmax_of_chosen"  # what weights of chosen experts are made of: the router's logits
    weighs_expert_inputs: bool = False  # the weight multiplies what an expert reads, not what it leaves
    expert_layers: tuple[bool, ...] = ()  # whether each layer has experts; () = all do, where there are experts
    dense_intermediate_size: int = 0  # of layers without experts, beside others that have them
    shared_intermediate_size: int = 0  # of the network that every token takes beside its experts; 0 = none
    has_shared_gate: bool = False  # what that leaves is multiplied with the sigmoid of a projection
    embedding_size: int = 0  # of embeddings that are projected to the hidden size and back; 0 = that size
    is_tied: bool = False  # the output layer is the embedding
    names: Names = LLAMA  # of the checkpoint's tensors, where they are not Llama's
    # What follows is planned and priced, and not served yet.
    kind: ModelKind = "decoder"  # an encoder attends to both sides and has no output layer
    has_output_layer: bool = True  # of a decoder: one that only embeds texts has none
    has_first_norm: bool = True  # layer 0 norms what attention reads, where layers do
    num_distance_buckets: int = 0  # rows of a bias of scores by distance, [buckets, heads]; 0 = none
    norm: NormKind = "rms"
    has_stream_norms: bool = False  # the stream itself is normed after each branch is added (BERT)
    parallel_norms: int = 0  # norms of attention and feed-forward side by side; 0 = one after the other
    has_attention_gate: bool = False  # attention's output is multiplied with a projection of its input
    has_ffn_bias: bool = False  # of feed-forward networks
    has_router_bias: bool = False
    has_head_bias: bool = False
    num_positions: int = 0  # rows of learned positions; 0 = none
    first_position: int = 0  # the row of a text's first token
    num_token_types: int = 0  # rows of learned token types; 0 = none
    has_embedding_norm: bool = False
    has_pooler: bool = False  # a dense layer over the first token

    @property
    def is_encoder(self) -> bool:
        """True when a request is one forward pass: no cache and no tokens that follow."""
        return self.kind == "encoder"

    @property
    def state_size(self) -> int:
        """Elements of a token's last state, which the output layer reads."""
        return self.embedding_size or self.hidden_size

    @property
    def widest_intermediate(self) -> int:
        """Size of the largest feed-forward network of a layer."""
        return max(self.intermediate_size, self.dense_intermediate_size, self.shared_intermediate_size)

    def has_experts(self, layer: int) -> bool:
        """Whether `layer` chooses among experts."""
        return bool(self.num_experts) and (not self.expert_layers or self.expert_layers[layer])

    def window(self, layer: int) -> int:
        """Sliding window of `layer` in tokens, 0 when it attends to everything before it."""
        return self.windows[layer] if self.windows else 0

    def span(self, layer: int) -> AttentionSpan:
        """How far `layer` looks back."""
        window = self.window(layer)
        return AttentionSpan(window, self.is_chunked and window > 0)

    def layer_rope(self, layer: int) -> RopeSpec | None:
        """Rotary embedding of `layer`, None when it has none."""
        return self.ropes[layer] if self.ropes else self.rope

    def layer_temperature(self, layer: int) -> TemperatureSpec | None:
        """Temperature of the queries of `layer`, None when it has none."""
        t = self.temperature
        return None if t is None or t.is_of_rotated != (self.layer_rope(layer) is not None) else t

    @property
    def temperatures(self) -> tuple[TemperatureSpec, ...]:
        """Distinct temperatures, in the order of the layers."""
        found = (self.layer_temperature(i) for i in range(self.num_layers))
        return tuple(dict.fromkeys(t for t in found if t is not None))

    @property
    def distinct_ropes(self) -> tuple[RopeSpec | None, ...]:
        """Distinct rotations, in the order of the layers; None = a layer without one."""
        return tuple(dict.fromkeys(self.ropes or (self.rope,)))


def without_output_layer(spec: ModelSpec) -> ModelSpec:
    """What of a model makes the last states of its tokens: no output layer, and no pooler."""
    return replace(
        spec,
        has_output_layer=False,
        is_tied=False,
        has_head_bias=False,
        logit_scale=1.0,
        logit_cap=0.0,
        has_pooler=False,
    )
