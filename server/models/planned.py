"""Any config.json for planning: families that are served by their own reader, others by generic keys.

A generic key has several names; the first that is present counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..typed_json import shown
from .config_values import ConfigError, Values, read_record, refuse
from .families import ARCHITECTURES, FAMILIES, model_spec_of
from .families.generic import TRAITS, GenericConfig
from .families.granite import GraniteMoeHybridConfig
from .families.hybrid import HybridConfig
from .families.slopes import TRAINED_LENGTH
from .families.text_part import TEXT_PARTS
from .spec import ModelSpec

# Other names of a key, in the order of preference; a dot goes into an object.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "attention_heads"),
    "num_key_value_heads": ("num_kv_heads", "attn_config.kv_n_heads"),
    "head_dim": (),
    "intermediate_size": ("n_inner", "ffn_dim", "hidden_dim", "ffn_hidden_size", "ffn_config.ffn_hidden_size"),
    "vocab_size": (),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length", "n_ctx", "model_max_length"),
    "rms_norm_eps": ("norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
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
}
REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")

# Mechanisms that no record of a model has, by the keys that say so.
NOT_EXPRESSED = {
    "is_encoder_decoder": "an encoder with a decoder",
    "kv_lora_rank": "latent attention (MLA)",
    "state_size": "a state in place of keys and values",
    "mamba_d_state": "a state in place of keys and values",
    "mamba_expand": "a state in place of keys and values",
    "attention_hidden_size": "a state in place of keys and values",
    "linear_num_value_heads": "linear attention",
    "attn_type_list": "linear attention",
    "hybrid_override_pattern": "layers of several kinds",
    "block_types": "layers of several kinds",
    "block_configs": "KV heads that differ by layer",
    "num_global_key_value_heads": "KV heads that differ by layer",
    "num_kv_shared_layers": "layers that read the KV of others",
    "hidden_size_per_layer_input": "an embedding for each layer",
    "enable_moe_block": "experts beside a network for all tokens",
    "cross_attention_layers": "cross attention",
}
OF_STATES = ("a state in place of keys and values", "linear attention", "layers of several kinds")
BY_LAYER = ("num_key_value_heads", "num_kv_heads")  # keys whose value may be a list, one number a layer


def planned_spec(config: Values) -> ModelSpec:
    """Return the model that `config` describes: by its family where one serves it, otherwise by generic keys.

    Raises ConfigError, naming the key, for values that are missing, out of range or contradictory, and for
    architectures that the records of a model do not express.
    """
    stated = _first_name(config)
    if stated in FAMILIES or stated in TEXT_PARTS:
        return model_spec_of(config)
    inner = config.get("text_config")
    values = {**config, **inner} if isinstance(inner, dict) else dict(config)
    has_states, reader = _has_states(values), FAMILIES.get(ARCHITECTURES.get(str(values.get("model_type")), ""))
    for key, mechanism in _mechanisms(values):
        is_read = reader is not None and key in reader.__struct_fields__
        if not is_read and not (has_states and mechanism in OF_STATES):
            named = stated or shown(values.get("model_type"))
            raise refuse(key, values[key], f"{named} has {mechanism}, which the cost model does not price")
    model_type = _model_type(values)
    keys = {"model_type": model_type, **_first_names(values)}
    if model_type == "bloom":
        keys.setdefault("max_position_embeddings", TRAINED_LENGTH)
    for key in () if has_states else REQUIRED:  # those families have defaults, or derive the number of layers
        if key not in keys:
            raise ConfigError(f"{key} is missing" + _or_else(SYNONYMS[key]))
    if model_type not in TRAITS:
        spec = model_spec_of({**values, **keys, "architectures": [ARCHITECTURES[model_type]]})
    else:
        spec = read_record(keys, GenericConfig).spec(model_type, keys)
    return replace(spec, architecture=stated or model_type)


def _mechanisms(values: Values) -> Iterator[tuple[str, str]]:
    """Yield each key that states a mechanism that no record has, with the mechanism."""
    yield from ((key, mechanism) for key, mechanism in NOT_EXPRESSED.items() if values.get(key))
    yield from ((key, "KV heads that differ by layer") for key in BY_LAYER if isinstance(values.get(key), list))


def _has_states(values: Values) -> bool:
    """Return whether a family with layers that keep a state reads files of this type."""
    family = FAMILIES.get(ARCHITECTURES.get(str(values.get("model_type")), ""))
    return family is not None and issubclass(family, (HybridConfig, GraniteMoeHybridConfig))


def _model_type(values: Values) -> str:
    """Return the type of the model; Llama's where the file names none."""
    model_type = values.get("model_type") or "llama"
    if isinstance(model_type, str) and model_type in {**TRAITS, **ARCHITECTURES}:
        return model_type
    raise ConfigError(
        f"model_type {shown(model_type)} is not known, and no key states the norms, biases and networks of its layers."
        f" 'llama', or no model_type, stands for those of Llama; known are {', '.join({**TRAITS, **ARCHITECTURES})}"
    )


def _first_name(config: Values) -> str:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _first_names(values: Values) -> dict[str, Any]:
    """Return the values by the first name of their keys; null counts as missing."""
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
