"""Public models by name: their dimensions, for planning and for measurements that name a model and leave its shape out.

Source of the sizes: the `config.json` published with the model's weights under the hub id. Positions are the published
context; they bound the lengths that are accepted, and no time or byte follows from them. What differs without changing
sizes, such as rotary bases, is given only for models that tools/random_checkpoint makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from server.models.families import model_spec_of
from server.models.spec import ModelSpec, RopeSpec


@dataclass(frozen=True, slots=True)
class PublicModel:
    """`pattern` finds the model in a lower-case name without "-", "_" and spaces."""

    hub_id: str
    pattern: str
    spec: ModelSpec


# layers, hidden, feed-forward, heads, KV heads, head dimension, vocabulary, positions
Sizes = tuple[int, int, int, int, int, int, int, int]


def _row(architecture: str, **common: Any) -> Any:
    """Makes rows of one architecture."""

    def row(hub_id: str, pattern: str, sizes: Sizes, **options: Any) -> PublicModel:
        return PublicModel(hub_id, pattern, ModelSpec(architecture, *sizes, **{**common, **options}))

    return row


def _llama3_rope(factor: float) -> RopeSpec:
    return RopeSpec(5e5, "llama3", factor, 8192, 1.0, 4.0)


def _gemma3(hub_id: str, pattern: str, **config: int) -> PublicModel:
    common = {"architectures": ["Gemma3ForCausalLM"], "num_attention_heads": 4, "num_key_value_heads": 1}
    spec = model_spec_of({**common, "vocab_size": 262_144, "max_position_embeddings": 32_768, **config})
    return PublicModel(hub_id, pattern, spec)


_llama = _row("LlamaForCausalLM", rms_norm_eps=1e-5)
_mistral = _row("MistralForCausalLM")
_mixtral = _row("MixtralForCausalLM", num_experts=8, experts_per_token=2)
_qwen2 = _row("Qwen2ForCausalLM", rope=RopeSpec(1e6), has_qkv_bias=True)
_qwen3 = _row("Qwen3ForCausalLM", has_qk_norm=True)
_granite = _row("GraniteForCausalLM", is_tied=True)
_opt = _row("OPTForCausalLM", is_gated=False, activation="relu", is_tied=True)

# The first row whose pattern is found is taken.
MODELS: tuple[PublicModel, ...] = (
    _mixtral("mistralai/Mixtral-8x7B-v0.1", r"mixtral8x7b", (32, 4096, 14_336, 32, 8, 128, 32_000, 32_768)),
    _mixtral("mistralai/Mixtral-8x22B-v0.1", r"mixtral8x22b", (56, 6144, 16_384, 48, 8, 128, 32_768, 65_536)),
    _row("Qwen3MoeForCausalLM", has_qk_norm=True, num_experts=128, experts_per_token=8)(
        "Qwen/Qwen3-30B-A3B", r"qwen330ba3b", (48, 2048, 768, 32, 4, 128, 151_936, 40_960)
    ),
    _llama("codellama/CodeLlama-7b-hf", r"codellama7b", (32, 4096, 11_008, 32, 32, 128, 32_016, 16_384)),
    _llama("codellama/CodeLlama-13b-hf", r"codellama13b", (40, 5120, 13_824, 40, 40, 128, 32_016, 16_384)),
    _llama("codellama/CodeLlama-34b-hf", r"codellama34b", (48, 8192, 22_016, 64, 8, 128, 32_000, 16_384)),
    _llama("codellama/CodeLlama-70b-hf", r"codellama70b", (80, 8192, 28_672, 64, 8, 128, 32_016, 16_384)),
    _llama("TinyLlama/TinyLlama-1.1B-Chat-v1.0", r"tinyllama", (22, 2048, 5632, 32, 4, 64, 32_000, 2048)),
    _llama("meta-llama/Llama-2-7b-hf", r"llama27b", (32, 4096, 11_008, 32, 32, 128, 32_000, 4096)),
    _llama("meta-llama/Llama-2-13b-hf", r"llama213b", (40, 5120, 13_824, 40, 40, 128, 32_000, 4096)),
    _llama("meta-llama/Llama-2-70b-hf", r"llama270b", (80, 8192, 28_672, 64, 8, 128, 32_000, 4096)),
    _llama(
        "meta-llama/Llama-3.2-1B",
        r"llama3\.21b",
        (16, 2048, 8192, 32, 8, 64, 128_256, 131_072),
        rope=_llama3_rope(32.0),
        is_tied=True,
    ),
    _llama(
        "meta-llama/Llama-3.2-3B",
        r"llama3\.23b",
        (28, 3072, 8192, 24, 8, 128, 128_256, 131_072),
        rope=_llama3_rope(32.0),
        is_tied=True,
    ),
    _llama(
        "meta-llama/Meta-Llama-3-8B",
        r"llama3(\.1)?8b",
        (32, 4096, 14_336, 32, 8, 128, 128_256, 8192),
        rope=RopeSpec(5e5),
    ),
    _llama(
        "meta-llama/Meta-Llama-3-70B",
        r"llama3(\.[13])?70b",
        (80, 8192, 28_672, 64, 8, 128, 128_256, 8192),
        rope=RopeSpec(5e5),
    ),
    _mistral(
        "mistralai/Mistral-7B-Instruct-v0.2",
        r"(mistral|zephyr)7b",
        (32, 4096, 14_336, 32, 8, 128, 32_000, 32_768),
    ),
    _mistral("mistralai/Mistral-Nemo-Base-2407", r"mistralnemo", (40, 5120, 14_336, 32, 8, 128, 131_072, 128_000)),
    _mistral(
        "mistralai/Mistral-Small-Instruct-2409",
        r"mistralsmall.*(2409|22b)",
        (56, 6144, 16_384, 48, 8, 128, 32_768, 32_768),
    ),
    _mistral(
        "mistralai/Mistral-Small-24B-Instruct-2501",
        r"mistralsmall",
        (40, 5120, 32_768, 32, 8, 128, 131_072, 32_768),
    ),
    _qwen2(
        "Qwen/Qwen2.5-0.5B-Instruct",
        r"qwen2\.5(coder|math)?0\.5b",
        (24, 896, 4864, 14, 2, 64, 151_936, 32_768),
        is_tied=True,
    ),
    _qwen2(
        "Qwen/Qwen2.5-1.5B-Instruct",
        r"qwen2\.5(coder|math)?1\.5b",
        (28, 1536, 8960, 12, 2, 128, 151_936, 32_768),
        is_tied=True,
    ),
    _qwen2(
        "Qwen/Qwen2.5-3B-Instruct",
        r"qwen2\.5(coder|math)?3b",
        (36, 2048, 11_008, 16, 2, 128, 151_936, 32_768),
        is_tied=True,
    ),
    _qwen2(
        "Qwen/Qwen2.5-7B-Instruct",
        r"(qwen2(\.5)?(coder|math)?|distillqwen)7b",
        (28, 3584, 18_944, 28, 4, 128, 152_064, 32_768),
    ),
    _qwen2(
        "Qwen/Qwen2.5-14B-Instruct",
        r"(qwen2\.5(coder)?|distillqwen)14b",
        (48, 5120, 13_824, 40, 8, 128, 152_064, 32_768),
    ),
    _qwen2(
        "Qwen/Qwen2.5-32B-Instruct",
        r"(qwen2\.5(coder)?|distillqwen|qwq)32b",
        (64, 5120, 27_648, 40, 8, 128, 152_064, 32_768),
    ),
    _qwen2("Qwen/Qwen2.5-72B-Instruct", r"qwen2(\.5)?72b", (80, 8192, 29_568, 64, 8, 128, 152_064, 32_768)),
    _qwen3("Qwen/Qwen3-0.6B", r"qwen30\.6b", (28, 1024, 3072, 16, 8, 128, 151_936, 40_960), is_tied=True),
    _qwen3("Qwen/Qwen3-1.7B", r"qwen31\.7b", (28, 2048, 6144, 16, 8, 128, 151_936, 40_960), is_tied=True),
    _qwen3("Qwen/Qwen3-4B", r"qwen34b", (36, 2560, 9728, 32, 8, 128, 151_936, 40_960), is_tied=True),
    _qwen3("Qwen/Qwen3-8B", r"qwen38b", (36, 4096, 12_288, 32, 8, 128, 151_936, 40_960)),
    _qwen3("Qwen/Qwen3-14B", r"qwen314b", (40, 5120, 17_408, 40, 8, 128, 151_936, 40_960)),
    _qwen3("Qwen/Qwen3-32B", r"qwen332b", (64, 5120, 25_600, 64, 8, 128, 151_936, 40_960)),
    _granite("ibm-granite/granite-3.1-2b-instruct", r"granite3\.\d2b", (40, 2048, 8192, 32, 8, 64, 49_155, 131_072)),
    _granite("ibm-granite/granite-3.1-8b-instruct", r"granite3\.\d8b", (40, 4096, 12_800, 32, 8, 128, 49_155, 131_072)),
    _row("SmolLM3ForCausalLM", is_tied=True)(
        "HuggingFaceTB/SmolLM3-3B", r"smollm33b", (36, 2048, 11_008, 16, 4, 128, 128_256, 65_536)
    ),
    _row("Phi3ForCausalLM")(
        "microsoft/Phi-3-mini-4k-instruct", r"phi3mini", (32, 3072, 8192, 32, 32, 96, 32_064, 4096)
    ),
    _row("Phi3ForCausalLM")("microsoft/phi-4", r"phi4(?!mini)", (40, 5120, 17_920, 40, 10, 128, 100_352, 16_384)),
    _opt("facebook/opt-13b", r"opt13b", (40, 5120, 20_480, 40, 40, 128, 50_272, 2048)),
    _opt("facebook/opt-30b", r"opt30b", (48, 7168, 28_672, 56, 56, 128, 50_272, 2048)),
    _opt("facebook/opt-66b", r"opt66b", (64, 9216, 36_864, 72, 72, 128, 50_272, 2048)),
    _row("GPTJForCausalLM", is_gated=False, activation="gelu_tanh")(
        "EleutherAI/gpt-j-6b", r"gptj6b", (28, 4096, 16_384, 16, 16, 256, 50_400, 2048)
    ),
    _row("GPTNeoXForCausalLM", is_gated=False, activation="gelu_tanh")(
        "EleutherAI/gpt-neox-20b", r"gptneox20b", (44, 6144, 24_576, 64, 64, 96, 50_432, 2048)
    ),
    _row("BloomForCausalLM", is_gated=False, activation="gelu_tanh", is_tied=True)(
        "bigscience/bloom-7b1", r"bloom7b1", (30, 4096, 16_384, 32, 32, 128, 250_880, 2048)
    ),
    _gemma3("google/gemma-3-270m", r"gemma3270m", num_hidden_layers=18, hidden_size=640, intermediate_size=2048),
    _gemma3("google/gemma-3-1b-it", r"gemma31b", num_hidden_layers=26, hidden_size=1152, intermediate_size=6912),
)

_BY_ID = {model.hub_id.lower(): model.spec for model in MODELS}


def _named(hub_id: str, vocab_size: int | None = None) -> ModelSpec:
    spec = _BY_ID[hub_id.lower()]
    return spec if vocab_size is None else replace(spec, vocab_size=vocab_size)


# Short names. Those of random checkpoints (tools/random_checkpoint) have the vocabulary of these.
NAMED: dict[str, ModelSpec] = {
    "qwen-0.5b": _named("Qwen/Qwen2.5-0.5B-Instruct", 32_000),
    "qwen-7b": _named("Qwen/Qwen2.5-7B-Instruct"),
    "llama-1b": _named("meta-llama/Llama-3.2-1B", 32_000),
    "llama-7b": _named("meta-llama/Llama-2-7b-hf"),
    "llama-8b": _named("meta-llama/Meta-Llama-3-8B"),
    "llama-13b": _named("meta-llama/Llama-2-13b-hf"),
    "llama-70b": _named("meta-llama/Meta-Llama-3-70B"),
    "mistral-7b": _named("mistralai/Mistral-7B-Instruct-v0.2"),
}


def named_model(name: str) -> ModelSpec | None:
    """The model with this short name or hub id, in any case; None when there is none."""
    return NAMED.get(name.lower()) or _BY_ID.get(name.lower())


def known_model(name: str) -> ModelSpec | None:
    """The model that a free description such as "Llama-3.1 8B" names; None when there is none."""
    plain = re.sub(r"[-_\s]", "", name.lower())
    return next((model.spec for model in MODELS if re.search(model.pattern, plain)), None)
