"""Metadata of a GGUF file as the values of a config.json, which families then read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...models.config_values import MAX_LAYERS
from ...typed_json import shown
from .architecture import COMMON, LONG_FACTORS, ROPE_FREQS, SHORT_FACTORS, Config, names_of
from .architectures import architecture_of
from .files import GgufFiles, decimals, open_gguf, parts_of
from .header import is_gguf

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
STATED_BY_TENSORS = {
    "attention_bias": {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"},
    "mlp_bias": {"blk.0.ffn_up.bias"},
    "use_qk_norm": {"blk.0.attn_q_norm.weight"},
}
WINDOW_PATTERN = "attention.sliding_window_pattern"
YARN = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def gguf_config(file: Path) -> Config | None:
    """Return the config.json of the model in a GGUF file, None when `file` is no GGUF file. Raises CheckpointError."""
    return config_of(open_gguf(parts_of(file))) if is_gguf(file) else None


def config_of(files: GgufFiles) -> Config:
    """Return the values of the model's config.json, as far as they are read.

    Raises CheckpointError for an architecture without a row, and for values that no config.json can state.
    """
    row = architecture_of(files)
    common = {name: key for name, key in COMMON.items() if name not in row.unread}
    found = ((key, files.number(name)) for name, key in {**common, **row.keys}.items())
    config: Config = {key: value for key, value in found if value is not None}
    config |= names_of(row.model_type or row.name) | {"vocab_size": _vocab_size(files)}
    if size := config.get("moe_intermediate_size"):
        config.setdefault("intermediate_size", size)
    if not row.has_own_heads:
        _check_heads(files, row.name, config)
    config |= {key: not tensors.isdisjoint(files.entries) for key, tensors in STATED_BY_TENSORS.items()}
    config["tie_word_embeddings"] = OUTPUT not in files.entries
    config |= _token_ids(files) | _layer_types(files, row.name, config) | row.values
    if "rope_scaling" not in row.values and (rope := _rope(files, row.name, config)) is not None:
        config["rope_scaling"] = rope
    return config | (row.read(files, config) if row.read else {})


def _vocab_size(files: GgufFiles) -> int:
    entry = files.entries.get(EMBEDDING)
    if entry is None or len(entry.info.shape) != 2:
        raise files.error("missing, or not a matrix: this is no language model", EMBEDDING)
    return entry.info.shape[0]


def _check_heads(files: GgufFiles, name: str, config: Config) -> None:
    """Read the size of a head, or derive it from the hidden size; keys and values must have the same size."""
    hidden, heads = (files.number(key) for key in ("embedding_length", "attention.head_count"))
    if not isinstance(hidden, int) or not isinstance(heads, int) or heads < 1:
        raise files.error(f"{name}.embedding_length is {shown(hidden)} and {name}.attention.head_count {shown(heads)}")
    width = config.setdefault("head_dim", hidden // heads)
    values, rotated = (files.number(key) for key in ("attention.value_length", "rope.dimension_count"))
    if values not in (None, width):
        raise files.error(f"{name}.attention.value_length is {values}: only that of keys, {width}, is supported")
    if rotated not in (None, width):
        config["partial_rotary_factor"] = rotated / max(1, width)


def _token_ids(files: GgufFiles) -> Config:
    ids = {key: files.metadata.get(f"tokenizer.ggml.{key}") for key in ("bos_token_id", "eos_token_id")}
    return {key: value for key, value in ids.items() if isinstance(value, int)}


def _layer_types(files: GgufFiles, name: str, config: Config) -> Config:
    """Return which layers have a window, where the file says so."""
    pattern, layers = files.metadata.get(f"{name}.{WINDOW_PATTERN}"), config.get("num_hidden_layers")
    if pattern is None:
        return {}
    if isinstance(pattern, int):
        return {"sliding_window_pattern": pattern}
    if not isinstance(pattern, np.ndarray) or len(pattern) != layers or len(pattern) > MAX_LAYERS:
        raise files.error(f"{name}.{WINDOW_PATTERN} is {shown(pattern)}: must be one value for each of {layers} layers")
    return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}


def _rope(files: GgufFiles, name: str, config: Config) -> Config | None:
    """Return `rope_scaling`, None where there is none."""
    if (factors := files.vector(ROPE_FREQS)) is not None:  # as Llama 3 and 4 scale frequencies, or otherwise
        both = dict.fromkeys(("short_factor", "long_factor"), decimals(factors))
        return None if (factors == 1).all() else {"rope_type": "longrope", "attention_factor": 1.0, **both}
    long, short = files.vector(LONG_FACTORS), files.vector(SHORT_FACTORS)
    original = files.number("rope.scaling.original_context_length")
    if long is not None and short is not None:
        config["original_max_position_embeddings"] = original
        scaled: Config = {"rope_type": "longrope", "long_factor": decimals(long), "short_factor": decimals(short)}
        scale = files.number("rope.scaling.attn_factor")
        return scaled if scale is None else scaled | {"attention_factor": scale}
    kind, factor = files.metadata.get(f"{name}.rope.scaling.type"), files.number("rope.scaling.factor")
    if kind in (None, "none") or factor is None:
        return None
    rope: Config = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    if kind == "yarn":
        rope |= {key: files.number(f"rope.scaling.{each}") for each, key in YARN.items()}
    return {key: value for key, value in rope.items() if value is not None}
