"""What the user called a model -> its dimensions, from a config.json or from a short list of names. No weights needed.

Never touches the network and never reads a tensor.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from server.checkpoint.json_object import read_object
from server.checkpoint.model_config import MAX_CONFIG_BYTES, model_spec_of, read_model_spec
from server.models.spec import ModelSpec, RopeSpec
from server.errors import SettingsError

# layers, hidden, feed-forward, heads, KV heads, head dimension, vocabulary, positions
Sizes = tuple[int, int, int, int, int, int, int, int]


def _llama(sizes: Sizes, *, is_tied: bool = False, theta: float = 10_000.0) -> ModelSpec:
    return ModelSpec("LlamaForCausalLM", *sizes, rms_norm_eps=1e-5, rope=RopeSpec(theta), is_tied=is_tied)


# From the `config.json` published with Llama-2 (7b, 13b), Llama-3 (8b, 70b), Llama-3.2-1B, Mistral-7B-v0.2 and
# Qwen2.5-Instruct (0.5B, 7B).
# llama-1b and qwen-0.5b have the vocabulary of 32,000 that tools/random_checkpoint gives them.
NAMED: dict[str, ModelSpec] = {
    "qwen-0.5b": ModelSpec(
        "Qwen2ForCausalLM",
        24,
        896,
        4864,
        14,
        2,
        64,
        32_000,
        32_768,
        rope=RopeSpec(1e6),
        has_qkv_bias=True,
        is_tied=True,
    ),
    "qwen-7b": ModelSpec(
        "Qwen2ForCausalLM", 28, 3584, 18_944, 28, 4, 128, 152_064, 32_768, rope=RopeSpec(1e6), has_qkv_bias=True
    ),
    "llama-1b": _llama((16, 2048, 8192, 32, 8, 64, 32_000, 131_072), is_tied=True, theta=5e5),
    "llama-7b": _llama((32, 4096, 11_008, 32, 32, 128, 32_000, 4096)),
    "llama-8b": _llama((32, 4096, 14_336, 32, 8, 128, 128_256, 8192), theta=5e5),
    "llama-13b": _llama((40, 5120, 13_824, 40, 40, 128, 32_000, 4096)),
    "llama-70b": _llama((80, 8192, 28_672, 64, 8, 128, 128_256, 8192), theta=5e5),
    "mistral-7b": ModelSpec(
        "MistralForCausalLM", 32, 4096, 14_336, 32, 8, 128, 32_000, 32_768, rms_norm_eps=1e-5, rope=RopeSpec(1e6)
    ),
}


def resolve_shape(model: str) -> ModelSpec:
    """The dimensions of `model`: a checkpoint directory, a file in the form of config.json, or a name of `NAMED`.

    A path that exists wins over a name. Raises SettingsError for what is none of the three, with the nearest names, and
    CheckpointError for a configuration that cannot be served.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return read_model_spec(path)
    if path.is_file():
        return model_spec_of(read_object(path, MAX_CONFIG_BYTES))
    found = NAMED.get(model.lower())
    if found is None:
        near = get_close_matches(model.lower(), NAMED, n=2)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise SettingsError(
            f"model {model!r} is no checkpoint directory, no config.json file and no named shape.{hint} "
            f"Named: {', '.join(NAMED)}"
        )
    return found
