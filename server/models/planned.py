"""Any config.json as a `ModelSpec` for planning: generic keys, whatever the server can load.

Keys have several names; the first of a list that is present counts. What keys do not say is in traits.py. Names and
sizes alone: rotary embeddings, softcaps and multipliers, which change no byte and no time, are not read.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from neuronserve.server.models.config_values import (
    MAX_POSITIONS,
    ConfigError,
    Epsilon,
    HeadDim,
    Heads,
    Layers,
    Positions,
    Values,
    Vocab,
    Width,
    read_record,
    refuse,
)
from neuronserve.server.models.families import FAMILIES, model_spec_of
from neuronserve.server.models.families.text_part import TEXT_PARTS
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.traits import ALIBI, DEFAULT_KEYS, FIRST_IS_GLOBAL, LEARNED_POSITIONS, TRAITS, WINDOWED
from neuronserve.server.typed_json import shown

Count = Annotated[int, Meta(ge=0, le=4096)]

# Other names of a key, in the order of preference; a dot goes into an object.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "attn_config.kv_n_heads"),
    "head_dim": (),
    "intermediate_size": ("n_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size"),
    "vocab_size": (),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "norm_eps": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
    "num_experts": ("num_local_experts", "n_routed_experts", "ffn_config.moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_top_k", "ffn_config.moe_top_k"),
    "moe_intermediate_size": (),
    "dense_intermediate_size": ("intermediate_size_mlp",),
    "shared_intermediate_size": ("shared_expert_intermediate_size",),
    "num_shared_experts": ("n_shared_experts",),
    "num_dense_layers": ("first_k_dense_replace",),
    "expert_layer_step": ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq"),
    "mlp_only_layers": (),
    "sliding_window": ("attention_chunk_size", "local_attention"),
    "sliding_window_pattern": ("_sliding_window_pattern", "global_attn_every_n_layers"),
    "use_sliding_window": (),
    "layer_types": (),
    "tie_word_embeddings": (),
    "attention_bias": (),
    "mlp_bias": (),
    "multi_query": (),
    "type_vocab_size": (),
}
REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")

# What a transformer of this project has no words for, by the keys that say so.
NOT_EXPRESSED = {
    "is_encoder_decoder": "an encoder with a decoder",
    "kv_lora_rank": "multi-head latent attention",
    "state_size": "a state-space model",
    "mamba_d_state": "a state-space model",
    "mamba_expand": "a state-space model",
    "linear_num_value_heads": "linear attention",
    "hybrid_override_pattern": "layers of several kinds",
    "block_types": "layers of several kinds",
}


class _Config(msgspec.Struct, kw_only=True):
    """The keys by their first names."""

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Heads
    vocab_size: Vocab
    max_position_embeddings: Positions
    num_key_value_heads: Heads | None = None
    head_dim: HeadDim | None = None
    intermediate_size: Width | None = None  # None: four times the hidden size
    norm_eps: Epsilon = 1e-6
    num_experts: Count = 0
    num_experts_per_tok: Count = 0
    moe_intermediate_size: Width | None = None  # None: intermediate_size is an expert's
    dense_intermediate_size: Width | None = None
    shared_intermediate_size: Annotated[int, Meta(ge=0, le=1 << 20)] | None = None
    num_shared_experts: Count = 0
    num_dense_layers: Count = 0
    expert_layer_step: Layers = 1
    mlp_only_layers: list[int] = []
    sliding_window: Annotated[int, Meta(ge=0, le=MAX_POSITIONS)] | None = None  # 0, as null: none slides
    sliding_window_pattern: Layers | None = None
    use_sliding_window: bool = True
    layer_types: list[str] | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    multi_query: bool = False
    type_vocab_size: Count = 0


def planned_spec(config: Values) -> ModelSpec:
    """The dimensions of the model that `config` describes: by its family where one serves it, else by generic keys.

    Raises ConfigError, naming the key, for what is missing, out of range or contradictory, and for architectures that
    the graph does not express.
    """
    if _first_name(config) in FAMILIES or _first_name(config) in TEXT_PARTS:
        return model_spec_of(config)
    inner = config.get("text_config")
    values = {**config, **inner} if isinstance(inner, dict) else config
    for key, what in NOT_EXPRESSED.items():
        if values.get(key):
            raise refuse(key, values[key], f"{what} cannot be planned")
    model_type = _model_type(values)
    keys = {**DEFAULT_KEYS.get(model_type, {}), **_first_names(values)}
    for key in REQUIRED:
        if key not in keys:
            raise ConfigError(f"{key} is missing" + _or_else(SYNONYMS[key]))
    read = read_record(keys, _Config)
    options = {**TRAITS[model_type], **_stated(read), **_positions(read, model_type)}
    sizes = {**_attention(read, values), **_feed_forward(read)}
    return ModelSpec(
        architecture=_first_name(config) or model_type,
        num_layers=read.num_hidden_layers,
        hidden_size=read.hidden_size,
        vocab_size=read.vocab_size,
        rms_norm_eps=read.norm_eps,
        windows=_windows(read, model_type),
        ropes=_ropes(read, model_type),
        **sizes,
        **options,
    )


def _model_type(values: Values) -> str:
    """The row of traits; Llama's where the file names no type, as one written by hand."""
    model_type = values.get("model_type") or "llama"
    if isinstance(model_type, str) and model_type in TRAITS:
        return model_type
    raise ConfigError(
        f"model_type {shown(model_type)} is not known: what norms, biases and feed-forward its layers have is in no"
        f" key. With 'llama' or none they are taken to be Llama's; known are {', '.join(TRAITS)}"
    )


def _first_name(config: Values) -> str:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _first_names(values: Values) -> dict[str, Any]:
    """The values by the first name of their keys; null counts as missing."""
    found = {}
    for key, others in SYNONYMS.items():
        present = (_at(values, name) for name in (key, *others))
        value = next((each for each in present if each is not None), None)
        if value is not None:
            found[key] = value
    return found


def _at(values: Values, name: str) -> object:
    outer, _, inner = name.partition(".")
    value = values.get(outer)
    return value.get(inner) if inner and isinstance(value, dict) else None if inner else value


def _or_else(names: tuple[str, ...]) -> str:
    return f", and so is every other name of it ({', '.join(names)})" if names else ""


def _stated(read: _Config) -> dict[str, Any]:
    """Options that keys state, over what the architecture does without them."""
    stated = {
        "is_tied": read.tie_word_embeddings,
        "has_qkv_bias": read.attention_bias,
        "has_o_bias": read.attention_bias,
        "has_ffn_bias": read.mlp_bias,
        "num_token_types": read.type_vocab_size or None,
    }
    return {key: value for key, value in stated.items() if value is not None}


def _positions(read: _Config, model_type: str) -> dict[str, int]:
    stated = read.max_position_embeddings
    if model_type not in LEARNED_POSITIONS:
        return {"max_position": stated}
    more, unused = LEARNED_POSITIONS[model_type]
    return {"max_position": stated - unused, "num_positions": stated + more, "first_position": more + unused}


def _ropes(read: _Config, model_type: str) -> tuple[None, ...]:
    """No rotation on any layer, for types with other positions; () = on all."""
    return (None,) * read.num_hidden_layers if model_type in (*LEARNED_POSITIONS, *ALIBI) else ()


def _attention(read: _Config, values: Values) -> dict[str, int]:
    heads, hidden = read.num_attention_heads, read.hidden_size
    shares_one = read.multi_query and not values.get("new_decoder_architecture")
    kv_heads = 1 if shares_one else read.num_key_value_heads or heads
    if heads % kv_heads:
        raise refuse("num_attention_heads", heads, f"not a multiple of num_key_value_heads, which is {kv_heads}")
    if read.head_dim is None and hidden % heads:
        raise refuse("hidden_size", hidden, f"not a multiple of num_attention_heads, {heads}, and head_dim is missing")
    return {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": read.head_dim or hidden // heads}


def _feed_forward(read: _Config) -> dict[str, Any]:
    plain = read.intermediate_size or 4 * read.hidden_size
    if not read.num_experts:
        return {"intermediate_size": plain}
    per_token, layers = read.num_experts_per_tok, read.num_hidden_layers
    if not 1 <= per_token <= read.num_experts:
        raise refuse("num_experts_per_tok", per_token, f"must be 1 to num_experts, which is {read.num_experts}")
    chooses = tuple(
        i >= read.num_dense_layers and (i + 1) % read.expert_layer_step == 0 and i not in read.mlp_only_layers
        for i in range(layers)
    )
    if not any(chooses):
        raise refuse("num_experts", read.num_experts, "no layer has experts")
    expert = read.moe_intermediate_size or plain
    shared = read.shared_intermediate_size
    return {
        "intermediate_size": expert,
        "num_experts": read.num_experts,
        "experts_per_token": per_token,
        "expert_layers": () if all(chooses) else chooses,
        "dense_intermediate_size": 0 if all(chooses) else read.dense_intermediate_size or plain,
        "shared_intermediate_size": expert * read.num_shared_experts if shared is None else shared,
    }


def _windows(read: _Config, model_type: str) -> tuple[int, ...]:
    """The window of each layer: by its type, by the period of layers that attend to everything, or one for all.

    One as long as the positions never slides.
    """
    layers, window, every = range(read.num_hidden_layers), read.sliding_window, read.sliding_window_pattern
    if not window or window >= read.max_position_embeddings or not read.use_sliding_window:
        return ()
    if read.layer_types is not None:
        if len(read.layer_types) != len(layers):
            raise refuse("layer_types", read.layer_types, f"must name the type of each of the {len(layers)} layers")
        for name in read.layer_types:
            if name not in (*WINDOWED, "full_attention"):
                raise refuse("layer_types", name, f"a layer may be full_attention, {' or '.join(WINDOWED)}")
        slides = [name in WINDOWED for name in read.layer_types]
    elif every is not None:
        offset = 0 if model_type in FIRST_IS_GLOBAL else 1
        slides = [(i + offset) % every != 0 for i in layers]
    else:
        slides = [True for _ in layers]
    return tuple(window * each for each in slides) if any(slides) else ()
