"""config.json of a Hugging Face checkpoint -> `ModelSpec`: which architectures are served, and with which options.

What a missing key means is as in the Hugging Face config class of that architecture. An option that would change the
result and is not implemented is refused, never ignored. Reads no weights and runs no code of the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from server.checkpoint.compressed_tensors import refuse_unknown_method
from server.checkpoint.json_object import JsonObject, read_object, shown
from server.checkpoint.rope_config import MAX_POSITIONS, read_rope
from server.config import ModelSpec
from server.errors import CheckpointError

MAX_CONFIG_BYTES = 4 << 20
MAX_LAYERS = 1024
MAX_HEADS = 1024
MAX_HEAD_DIM = 1024
MAX_WIDTH = 1 << 20  # hidden and feed-forward sizes
MAX_VOCAB = 1 << 22

Bias = Literal["never", "qkv", "option"]  # "option": attention_bias decides for q, k, v and o


@dataclass(frozen=True, slots=True)
class Family:
    """What is particular to one architecture: its defaults, and what its code always or never does."""

    defaults: dict[str, int] = field(default_factory=dict)
    bias: Bias = "option"
    has_qk_norm: bool = False
    has_layer_windows: bool = False  # the sliding window is per layer (Qwen)
    has_window: bool = False  # one sliding window on all layers (Mistral)


_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_MISTRAL = _LLAMA | {"intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 131_072}
_QWEN = _LLAMA | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
}

FAMILIES = {
    "LlamaForCausalLM": Family(_LLAMA),
    "MistralForCausalLM": Family(_MISTRAL, bias="never", has_window=True),
    "Qwen2ForCausalLM": Family(_QWEN, bias="qkv", has_layer_windows=True),
    "Qwen3ForCausalLM": Family(_QWEN | {"head_dim": 128}, has_qk_norm=True, has_layer_windows=True),
}


def read_model_spec(directory: Path) -> ModelSpec:
    """The dimensions and options in `directory`/config.json.

    Raises CheckpointError, naming the file, the key, the value and what is allowed, for a missing or malformed file,
    an unknown architecture, remote code, foreign quantization, and values that are out of range or contradictory.
    """
    return model_spec_of(read_object(directory / "config.json", MAX_CONFIG_BYTES))


def model_spec_of(config: JsonObject) -> ModelSpec:
    """As `read_model_spec`, of a configuration that has been read."""
    architecture = _architecture(config)
    family = FAMILIES[architecture]
    _refuse_unsupported(config)
    num_layers = config.integer("num_hidden_layers", family.defaults["num_hidden_layers"], 1, MAX_LAYERS)
    hidden = config.integer("hidden_size", family.defaults["hidden_size"], 1, MAX_WIDTH)
    num_heads, num_kv_heads, head_dim = _heads(config, family, hidden)
    max_position = config.integer(
        "max_position_embeddings", family.defaults["max_position_embeddings"], 1, MAX_POSITIONS
    )
    has_qkv_bias, has_o_bias = _biases(config, family)
    return ModelSpec(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size", family.defaults["intermediate_size"], 1, MAX_WIDTH),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=config.integer("vocab_size", family.defaults["vocab_size"], 1, MAX_VOCAB),
        max_position=max_position,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6, 0.0, 1.0),
        rope=read_rope(config, max_position),
        has_qkv_bias=has_qkv_bias,
        has_o_bias=has_o_bias,
        has_qk_norm=family.has_qk_norm,
        is_tied=config.flag("tie_word_embeddings"),
        windows=_windows(config, family, num_layers),
    )


def _architecture(config: JsonObject) -> str:
    names = config.get("architectures")
    known = ", ".join(FAMILIES)
    if not isinstance(names, list) or not names:
        raise CheckpointError(config.file, f"architectures is missing; supported are {known}")
    if not isinstance(names[0], str) or names[0] not in FAMILIES:
        raise CheckpointError(config.file, f"architecture {shown(names[0])} is not supported; supported are {known}")
    return names[0]


def _refuse_unsupported(config: JsonObject) -> None:
    """Options that change what the model computes, or whose code it is, and that this server does not implement."""
    for key in ("auto_map", "trust_remote_code"):
        if config.get(key):
            config.refuse(key, "is set: code that comes with a checkpoint is never run")
    if config.get("compression_config"):
        config.refuse("compression_config", "is set: this older form is not supported, only quantization_config")
    refuse_unknown_method(config)
    activation = config.get("hidden_act")
    if activation not in (None, "silu"):
        config.refuse("hidden_act", f"{shown(activation)} is not supported, only 'silu'")
    if config.flag("mlp_bias"):
        config.refuse("mlp_bias", "true is not supported: the feed-forward layers have no bias")


def _heads(config: JsonObject, family: Family, hidden: int) -> tuple[int, int, int]:
    """Query heads, KV heads, and values per head."""
    num_heads = config.integer("num_attention_heads", family.defaults["num_attention_heads"], 1, MAX_HEADS)
    # A null asks for as many KV heads as query heads; a key left out takes the default of the class.
    default_kv = num_heads if "num_key_value_heads" in config.values else family.defaults.get("num_key_value_heads")
    num_kv_heads = config.integer("num_key_value_heads", default_kv or num_heads, 1, MAX_HEADS)
    if num_heads % num_kv_heads:
        config.refuse("num_attention_heads", f"{num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    head_dim = family.defaults.get("head_dim")
    if head_dim is None and "head_dim" not in config:
        if hidden % num_heads:
            config.refuse("hidden_size", f"{hidden} is not a multiple of num_attention_heads {num_heads}")
        head_dim = hidden // num_heads
    head_dim = config.integer("head_dim", head_dim, 2, MAX_HEAD_DIM)
    if head_dim % 2:
        config.refuse("head_dim", f"{head_dim} is odd: rotary embeddings turn pairs of values")
    return num_heads, num_kv_heads, head_dim


def _biases(config: JsonObject, family: Family) -> tuple[bool, bool]:
    """Whether q, k, v have a bias, and whether o has one."""
    is_set = config.flag("attention_bias")
    if family.bias == "never" and is_set:
        config.refuse("attention_bias", "true is not supported for this architecture")
    if family.bias == "qkv":
        return True, False
    return is_set, is_set


def _windows(config: JsonObject, family: Family, num_layers: int) -> tuple[int, ...]:
    """Sliding window of each layer in tokens, 0 for full attention; () when all are full."""
    if family.has_window:
        if config.get("sliding_window") is None and "sliding_window" in config.values:
            return ()
        return (config.integer("sliding_window", 4096, 1, MAX_POSITIONS),) * num_layers
    if not family.has_layer_windows:
        return ()
    is_sliding = _sliding_layers(config, num_layers)
    if not any(is_sliding):
        return ()
    if not config.flag("use_sliding_window"):
        config.refuse("layer_types", "names sliding_attention, but use_sliding_window is false")
    default = None if "sliding_window" in config.values else 4096
    window = config.integer("sliding_window", default, 1, MAX_POSITIONS)
    return tuple(window * sliding for sliding in is_sliding)


def _sliding_layers(config: JsonObject, num_layers: int) -> list[bool]:
    """Which layers slide: as `layer_types` says, otherwise those from `max_window_layers` on."""
    types = config.get("layer_types")
    if types is None:
        if not config.flag("use_sliding_window") or config.values.get("sliding_window", 4096) is None:
            return []
        first = config.integer("max_window_layers", 28, 0, MAX_LAYERS)
        return [layer >= first for layer in range(num_layers)]
    if not isinstance(types, list) or len(types) != num_layers:
        config.refuse("layer_types", f"must list the type of each of the {num_layers} layers")
    for name in types:
        if name not in ("full_attention", "sliding_attention"):
            config.refuse("layer_types", f"has {shown(name)}; supported are full_attention, sliding_attention")
    return [name == "sliding_attention" for name in types]
