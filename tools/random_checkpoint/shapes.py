"""The named shapes and the config.json of each. The large ones have the dimensions of the models they are named after.

The tiny ones are for parity tests: between them they hold every option the decoder has, at sizes that divide badly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tools.random_checkpoint.tokenizer import END_OF_TEXT, END_OF_TURN, special_token_ids

Config = dict[str, Any]

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One decoder. `options` are further keys of config.json, in the spelling of the architecture."""

    architecture: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    max_position: int
    head_dim: int
    is_tied: bool = False
    eps: float = 1e-6
    options: Config = field(default_factory=dict)

    def config(self, dtype: str, layers: int | None = None, vocab: int | None = None) -> Config:
        """config.json as transformers reads it; `dtype` in its spelling, such as bfloat16."""
        vocab = vocab or self.vocab
        special = special_token_ids(vocab)
        return {
            "architectures": [self.architecture],
            "model_type": MODEL_TYPES[self.architecture],
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": layers or self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": vocab,
            "max_position_embeddings": self.max_position,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": self.is_tied,
            "torch_dtype": dtype,
            "bos_token_id": None,
            "eos_token_id": special[END_OF_TURN],
            "pad_token_id": special[END_OF_TEXT],
            "use_cache": True,
        } | self.options


def _llama3_rope(factor: float, original: int) -> Config:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def _tiny_llama(**options: Any) -> Shape:
    return Shape("LlamaForCausalLM", 3, 64, 176, 8, 4, 384, 512, head_dim=16, eps=1e-5, options=options)


SHAPES: dict[str, Shape] = {
    "qwen-0.5b": Shape(
        "Qwen2ForCausalLM", 24, 896, 4864, 14, 2, 32_000, 32_768, 64, is_tied=True, options={"rope_theta": 1e6}
    ),
    "llama-1b": Shape(
        "LlamaForCausalLM",
        16,
        2048,
        8192,
        32,
        8,
        32_000,
        131_072,
        64,
        is_tied=True,
        eps=1e-5,
        options={"rope_theta": 5e5, "rope_scaling": _llama3_rope(32.0, 8192)},
    ),
    "llama-8b": Shape(
        "LlamaForCausalLM", 32, 4096, 14_336, 32, 8, 128_256, 8192, 128, eps=1e-5, options={"rope_theta": 5e5}
    ),
    "tiny-llama": _tiny_llama(rope_theta=10_000.0),
    "tiny-llama-linear": _tiny_llama(
        rope_theta=10_000.0, rope_scaling={"type": "linear", "factor": 4.0}, attention_bias=True
    ),
    "tiny-llama3-rope": _tiny_llama(rope_theta=500_000.0, rope_scaling=_llama3_rope(8.0, 64)),
    # Rotations at which both ends of YaRN's ramp fall inside a head of 16, between whole dimensions.
    "tiny-llama-yarn": _tiny_llama(
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 8.0,
            "beta_fast": 4.0,
            "beta_slow": 0.5,
            "original_max_position_embeddings": 64,
        }
    ),
    # A window that is no multiple of any block size, and KV heads fewer than tensor-parallel ranks.
    "tiny-mistral": Shape(
        "MistralForCausalLM",
        3,
        64,
        176,
        8,
        2,
        384,
        512,
        16,
        eps=1e-5,
        options={"rope_theta": 10_000.0, "sliding_window": 21},
    ),
    # Full attention below, a window above.
    "tiny-qwen2": Shape(
        "Qwen2ForCausalLM",
        3,
        64,
        176,
        8,
        2,
        384,
        512,
        16,
        is_tied=True,
        options={"rope_theta": 1e6, "use_sliding_window": True, "sliding_window": 19, "max_window_layers": 1},
    ),
    "tiny-qwen3": Shape(
        "Qwen3ForCausalLM",
        3,
        64,
        176,
        8,
        2,
        384,
        512,
        32,
        options={"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "attention_bias": False},
    ),
    # Nothing is a multiple of 16 but head_dim, and the heads divide by 2 only.
    "tiny-odd": Shape(
        "LlamaForCausalLM", 2, 98, 154, 14, 2, 303, 512, 16, is_tied=True, eps=1e-5, options={"rope_theta": 10_000.0}
    ),
}

TINY = tuple(name for name in SHAPES if name.startswith("tiny-"))
