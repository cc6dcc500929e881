"""Records of one layer: a mixer, which lets tokens see each other, and a feed-forward network.

A new kind of mixer or feed-forward network is one more record in its union (`Mixer`, `FeedForward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..config import AttentionSpan
from .linear import HeadCounts
from .state_layer import GatedDeltaNetSpec, Mamba2Spec, ShortConvSpec, StateMixer

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]
Activation = Literal["none", "silu", "gelu_tanh", "gelu", "relu", "swiglu_clamped", "relu2", "xielu", "quick_gelu"]
Routing = Literal["softmax", "softmax_of_chosen", "sigmoid", "sigmoid_of_chosen", "softmax_of_near"]

# Norms of query and key heads.
QKNorm = Literal[
    "none",
    "head",  # RMSNorm of each head, with the same weights for all
    "all_heads",  # RMSNorm over all heads together
    "each_head",  # LayerNorm of each head, with weights of its own
    "head_layer",  # LayerNorm of each head, with the same weights and biases for all
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
    partial_factor: float = 1.0  # share of a head that is rotated: its first elements, or proportional: its first pairs
    is_interleaved: bool = False  # neighbours are rotated as a pair
    is_halved: bool = False  # each half of a head is rotated by itself
    sections: tuple[int, ...] = ()  # pairs that turn by a picture's time, row and column; () = all by one position
    has_mixed_sections: bool = False  # the three take turns in the first pairs, instead of following one another

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many elements of a head of `head_dim` are rotated."""
        return head_dim if self.kind == "proportional" else int(head_dim * self.partial_factor)


@dataclass(frozen=True, slots=True)
class TemperatureSpec:
    """Factor of queries by position: 1 + scale * log(1 + floor((position + shift) / floor))."""

    scale: float
    floor: int  # tokens
    shift: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """A mixer that keeps keys and values of every token."""

    num_tensors: ClassVar[int] = 2  # of the cache: keys and values

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec | None = None
    window: int = 0  # tokens; 0 = all before
    is_chunked: bool = False  # the window is a chunk that begins at a multiple of its size
    qk_norm: QKNorm = "none"
    norms_rotated: bool = False  # the norm of heads follows the rotation
    has_qkv_bias: bool = False
    lacks_k_bias: bool = False  # of q, k and v, only q and v have the bias
    has_o_bias: bool = False
    scale: float | None = None  # of scores; None = head_dim ** -0.5
    score_cap: float = 0.0  # scores are held below it by a hyperbolic tangent; 0 = none
    temperature: TemperatureSpec | None = None
    has_sinks: bool = False  # each query head has a key without a value, whose score is learned
    slopes: tuple[float, ...] = ()  # ALiBi: for each head, what a score loses by token of distance; empty = nothing
    has_gate: bool = False  # the output is multiplied with a projection of the input
    num_distance_buckets: int = 0  # rows of a bias of scores by distance, [buckets, heads]; 0 = none
    max_distance: int = 128  # tokens from which on all distances have one bucket; 0: each has its own
    has_distance_rows: bool = False  # the rows are vectors, projected as queries and keys, and scored with both
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

    @property
    def rotated_size(self) -> int:
        """Elements of a head to which the rotation's share applies."""
        return self.head_dim

    @property
    def products_per_pair(self) -> int:
        """Multiplications of one query head with one key and its value, and with rows by their distance."""
        return (4 if self.has_distance_rows else 2) * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionSpec(AttentionSpec):
    """A mixer that keeps a row of every token, which all heads read: a latent, and elements rotated by position.

    A head's keys and values are products of the latent, normed, and the rotated elements follow each key. The row is
    the one KV head, of `head_dim` = `rank` + `rotary` elements. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    num_tensors: ClassVar[int] = 1  # a row is key and value

    rank: int  # of the latent
    rotary: int  # rotated elements of the row, and of each query head after the others
    size: int  # elements of a query head that are not rotated
    value_size: int  # of a head's output
    query_rank: int = 0  # of the normed projection that queries are made of; 0 = they are made of the input
    eps: float = 1e-6  # of the norms of latents

    @property
    def rotated_size(self) -> int:
        """Elements that are rotated."""
        return self.rotary

    @property
    def products_per_pair(self) -> int:
        """Multiplications of one query head, as a row, with a row of the cache and its latent."""
        return self.head_dim + self.rank


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """One feed-forward network."""

    size: int  # elements between its two matrices
    activation: Activation = "silu"
    is_gated: bool = True  # act(gate) * up; otherwise act(up)
    has_bias: bool = False
    sparsity: float = 0.0  # share of a normal distribution of gates that count as 0; the others lose that quantile
    lacks_first_bias: bool = False  # of the two matrices, only the second has the bias

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
    is_bias_folded: bool = False  # the bias is stored with two dimensions, [1, experts]

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
    margin: float = 0.0  # of softmax_of_near: how far below the chosen logit others count, as a share of the larger
    has_own_norms: bool = False  # router, experts and `shared` have norms of their own, before and after

    @property
    def networks(self) -> tuple[NetworkSpec, ...]:
        """The expert, and the shared network where there is one."""
        return (self.expert,) if self.shared is None else (self.expert, self.shared)


@dataclass(frozen=True, slots=True)
class LayerInputSpec:
    """A branch behind the feed-forward network: a narrow network, whose activations an input of the layer multiplies.

    The input of a token on a layer is a row of a table, [vocab_size, layers * size], and a normed projection of the
    token's embedding. Source: Gemma3nTextModel of transformers.
    """

    network: NetworkSpec
    vocab_size: int


@dataclass(frozen=True, slots=True)
class StreamsSpec:
    """Several streams: a layer predicts all, goes on from the first, and corrects all by what it made of it (AltUp).

    A narrow network beside the mixer (LAuReL) reads the same normed stream, which is added too. The branch of the
    layer's input is added to the other streams. Source: Gemma3nTextModel of transformers; arXiv 2301.13310.
    """

    count: int
    laurel: NetworkSpec
    has_output_scale: bool  # the branch of the input reads the first stream times a vector


Mixer = AttentionSpec | ShortConvSpec | GatedDeltaNetSpec | Mamba2Spec
FeedForward = NetworkSpec | ExpertsSpec


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer: two branches whose outputs are added to the stream. Either may be missing."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: NormPlacement = "before"
    residual_scale: float = 1.0  # factor of what a branch adds
    has_scalar: bool = False  # the stream that the layer leaves is multiplied with a learned number
    cross: AttentionSpec | None = None  # attention to the encoder's states, a branch between the two
    beside: StateMixer | None = None  # a second mixer, which reads the same normed stream
    input: LayerInputSpec | None = None
    streams: StreamsSpec | None = None  # with norms before and after
    weights: str | None = None  # name in the file, in place of the layer's number, of weights that several layers have

    @property
    def attention(self) -> AttentionSpec:
        """The mixer of a layer that attends."""
        assert isinstance(self.mixer, AttentionSpec)
        return self.mixer

    @property
    def state(self) -> StateMixer | None:
        """The mixer that keeps a state, None when there is none."""
        return self.mixer if isinstance(self.mixer, StateMixer) else self.beside

    @property
    def networks(self) -> tuple[NetworkSpec, ...]:
        """All networks, an expert once for all of the layer."""
        own = () if self.feed_forward is None else self.feed_forward.networks
        beside = () if self.streams is None else (self.streams.laurel,)
        return (*own, *beside, *(() if self.input is None else (self.input.network,)))

    @property
    def num_branches(self) -> int:
        """Branches whose outputs are added up at once."""
        experts = self.feed_forward
        has_own_norms = isinstance(experts, ExpertsSpec) and experts.has_own_norms
        if self.streams is not None:
            return 3
        return 1 + (has_own_norms or self.norms in ("parallel", "parallel_each") or self.beside is not None)
