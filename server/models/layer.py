"""Records of one layer: a mixer, which lets tokens see each other, and a feed-forward network.

A new kind of mixer or feed-forward network is one more record in its union (`Mixer`, `FeedForward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..config import AttentionSpan
from .linear import HeadCounts

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "swiglu_clamped"]
Routing = Literal["softmax", "softmax_of_chosen", "sigmoid", "sigmoid_of_chosen"]

# Norms of query and key heads.
QKNorm = Literal[
    "none",
    "head",  # RMSNorm of each head, with the same weights for all
    "all_heads",  # RMSNorm over all heads together
    "each_head",  # LayerNorm of each head, with weights of its own
    "unweighted",  # RMSNorm of each head, without weights
]

# Norms of a layer.
NormPlacement = Literal[
    "before",  # each branch reads the normed stream (Llama)
    "before_and_after",  # each branch reads the normed stream, and its output is normed before it is added (Gemma 2)
    "after",  # each branch reads the stream, and its output is normed before it is added (OLMo 2)
    "stream",  # the stream is normed after each branch is added (BERT)
    "before_ffn",  # the feed-forward network alone reads the normed stream (first layer of ModernBERT)
    "parallel",  # both branches read one normed stream, side by side (Cohere)
    "parallel_each",  # both branches read the stream side by side, each by a norm of its own (GPT-NeoX)
]


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
    long_factors: tuple[float, ...] = ()  # longrope: of each pair, for longer contexts
    partial_factor: float = 1.0  # share of a head's elements that is rotated, from the first on
    is_interleaved: bool = False  # neighbours are rotated as a pair
    sections: tuple[int, ...] = ()  # pairs that turn by a picture's time, row and column; () = all by one position
    has_mixed_sections: bool = False  # the three take turns in the first pairs, instead of following one another

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many elements of a head of `head_dim` are rotated."""
        return int(head_dim * self.partial_factor)


@dataclass(frozen=True, slots=True)
class TemperatureSpec:
    """Factor of queries by position: 1 + scale * log(1 + floor((position + shift) / floor))."""

    scale: float
    floor: int  # tokens
    shift: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A mixer that keeps keys and values of every token."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None = None
    window: int = 0  # tokens; 0 = all before
    is_chunked: bool = False  # the window is a chunk that begins at a multiple of its size
    qk_norm: QKNorm = "none"
    norms_rotated: bool = False  # the norm of heads follows the rotation
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    scale: float | None = None  # of scores; None = head_dim ** -0.5
    score_cap: float = 0.0  # scores are held below it by a hyperbolic tangent; 0 = none
    temperature: TemperatureSpec | None = None
    has_sinks: bool = False  # each query head has a key without a value, whose score is learned
    slopes: tuple[float, ...] = ()  # ALiBi: for each head, what a score loses by token of distance; empty = nothing
    has_gate: bool = False  # the output is multiplied with a projection of the input
    num_distance_buckets: int = 0  # rows of a bias of scores by distance, [buckets, heads]; 0 = none
    kv_source: int | None = None  # layer whose keys and values are read; None: its own
    has_value_norm: bool = False  # RMSNorm of each value head, without weights
    is_value_key: bool = False  # values are the keys before their norm and rotation: there is no projection of values

    @property
    def heads(self) -> HeadCounts:
        """Query heads and KV heads."""
        return HeadCounts(self.num_heads, self.num_kv_heads)

    @property
    def span(self) -> AttentionSpan:
        """How far a token looks back."""
        return AttentionSpan(self.window, self.is_chunked and self.window > 0)


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """One feed-forward network."""

    size: int  # elements between its two matrices
    activation: Activation = "silu"
    is_gated: bool = True  # act(gate) * up; otherwise act(up)
    has_bias: bool = False

    @property
    def networks(self) -> tuple[NetworkSpec, ...]:
        """The network itself, as `ExpertsSpec` has its networks."""
        return (self,)


@dataclass(frozen=True, slots=True)
class ChoiceSpec:
    """Choice of experts by scores, the softmax or sigmoids of all logits. Groups are neighbouring experts."""

    has_bias: bool = False  # a learned bias is added to the scores for the choice, and not to the weights
    groups: int = 1
    top_groups: int = 1  # groups from which a token's experts come
    best_of_group: int = 1  # scores, the largest of a group, whose sum is the group's

    @property
    def is_plain(self) -> bool:
        """True when the largest logits win."""
        return not self.has_bias and self.groups == self.top_groups


PLAIN_CHOICE = ChoiceSpec()


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """Several networks, of which each token takes `per_token`, and one shared by all tokens."""

    count: int
    per_token: int
    expert: NetworkSpec
    shared: NetworkSpec | None = None
    has_shared_gate: bool = False  # the output of `shared` is multiplied with the sigmoid of a projection
    routing: Routing = "softmax_of_chosen"  # how the weights of chosen experts follow from the router's logits
    weighs_inputs: bool = False  # the weight multiplies the input of an expert, not its output
    has_router_bias: bool = False
    choice: ChoiceSpec = PLAIN_CHOICE
    scaling: float = 1.0  # factor of the weights

    @property
    def networks(self) -> tuple[NetworkSpec, ...]:
        """The expert, and the shared network where there is one."""
        return (self.expert,) if self.shared is None else (self.expert, self.shared)


Mixer = AttentionSpec
FeedForward = NetworkSpec | ExpertsSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: two branches whose outputs are added to the stream."""

    mixer: Mixer
    feed_forward: FeedForward
    norms: NormPlacement = "before"
    residual_scale: float = 1.0  # factor of what a branch adds

    @property
    def is_parallel(self) -> bool:
        """True when the branches are side by side."""
        return self.norms in ("parallel", "parallel_each")
