"""Record of an architecture in GGUF files: its name, and its keys as keys of config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...models.families import ARCHITECTURES as HUB_NAMES
from .files import GgufFiles

Config = dict[str, Any]
Keys = Mapping[str, str]
Read = Callable[[GgufFiles, Config], Config]

ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
READ_WITH_CONFIG = ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS  # tensors with values of config.json
KV_HEADS, FFN_SIZE = "attention.head_count_kv", "feed_forward_length"


def keys(text: str) -> dict[str, str]:
    """Return keys of config.json by keys of a GGUF file after the architecture's name, out of "one=other" pairs."""
    return dict(pair.split("=") for pair in text.split())


# Families with other names for the same values read these, too (`models.families.own_keys`).
COMMON = keys(
    "context_length=max_position_embeddings embedding_length=hidden_size block_count=num_hidden_layers"
    " feed_forward_length=intermediate_size attention.head_count=num_attention_heads"
    " attention.head_count_kv=num_key_value_heads attention.key_length=head_dim"
    " attention.layer_norm_rms_epsilon=rms_norm_eps attention.layer_norm_epsilon=rms_norm_eps"
    " attention.sliding_window=sliding_window rope.freq_base=rope_theta logit_scale=logit_scale"
    " attn_logit_softcapping=attn_logit_softcapping final_logit_softcapping=final_logit_softcapping"
    " expert_count=num_experts expert_used_count=num_experts_per_tok expert_feed_forward_length=moe_intermediate_size"
    " expert_shared_feed_forward_length=shared_expert_intermediate_size"
)


def names_of(model_type: str) -> Config:
    """Return the names of a type of models in config.json."""
    return {"architectures": [HUB_NAMES[model_type]], "model_type": model_type}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row. `name` is the file's; `values` and `read` override what the keys give."""

    name: str
    model_type: str = ""  # in config.json; "" = the name
    keys: Keys = field(default_factory=dict)  # that differ from COMMON
    values: Config = field(default_factory=dict)
    read: Read | None = None  # values that follow from further keys and from tensors
    unread: tuple[str, ...] = ()  # keys of COMMON whose meaning differs, or whose values differ by layer
    has_own_heads: bool = False  # sizes of keys, values and rotations are not those of one head
    has_rotary_pairs: bool = False  # rows of query and key heads are in the order of rotary pairs
    norm_shift: float = 0.0  # added to the weights of norms in the file
    words: Keys = field(default_factory=dict)  # words in the model's tensor names, each with the package's word
    in_block: Keys = field(default_factory=dict)  # endings of the model's names, each with the file's name in a block
    has_heads_apart: bool = False  # the file has all of q, then k, then v; the model has q, k and v of each KV head
    has_key_heads_in_turns: bool = False  # value heads of gated DeltaNet, which the model has by key head


def part_of_heads(key: str = "partial_rotary_factor") -> Read:
    """Return a function for the rotated share of a head: all of it where the file does not say."""
    return lambda _, config: {key: config.get("partial_rotary_factor", 1.0)}


def window_or_none(_: GgufFiles, config: Config) -> Config:
    """Return the window; 0 stands for none."""
    return {"sliding_window": config.get("sliding_window") or None}
