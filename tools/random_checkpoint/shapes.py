"""Named shapes and their config.json. The large ones have the dimensions of the models they are named after.

The tiny ones are for parity tests: together they cover every option of the decoder, at sizes that divide badly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from neuronserve.server.models.families import ARCHITECTURES, GENERATORS, own_keys
from neuronserve.server.models.public import NAMED
from tools.random_checkpoint.attention_shapes import TINY_ATTENTION
from tools.random_checkpoint.expert_shapes import TINY_EXPERTS
from tools.random_checkpoint.state_shapes import TINY_STATES
from tools.random_checkpoint.tokenizer import END_OF_TEXT, END_OF_TURN, special_token_ids

Config = dict[str, Any]

TINY_OTHERS = TINY_ATTENTION | TINY_EXPERTS | TINY_STATES
MODEL_TYPES = {name: model_type for model_type, name in ARCHITECTURES.items() if name in GENERATORS}


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. `options` are further keys of config.json, in the spelling of the architecture."""

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
        """Return config.json as transformers reads it; `dtype` in its spelling, such as bfloat16."""
        vocab = vocab or self.vocab
        special = special_token_ids(vocab)
        config = {
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
        }
        keys = own_keys(self.architecture)
        if "hidden_act" in keys:  # families with a key of their own have a default of their own
            del config["hidden_act"]
        return {keys.get(key, key): value for key, value in config.items()} | self.options


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


def _tiny(architecture: str, heads: int, kv_heads: int, head_dim: int, **options: Any) -> Shape:
    """Return a shape of four layers of 64, for architectures where only the options matter."""
    return Shape(architecture, 4, 64, 176, heads, kv_heads, 384, 512, head_dim, options=options)


def _public(name: str) -> Shape:
    """Return the shape of a public model, with the vocabulary of its short name."""
    spec = NAMED[name]
    rotation = spec.attention.rope
    assert rotation is not None
    rope: Config = {"rope_theta": rotation.theta}
    if rotation.kind == "llama3":
        rope["rope_scaling"] = _llama3_rope(rotation.factor, rotation.original_max_position)
    return Shape(
        spec.architecture,
        spec.num_layers,
        spec.hidden_size,
        spec.widest_intermediate,
        spec.num_heads,
        spec.num_kv_heads,
        spec.vocab_size,
        spec.max_position,
        spec.head_dim,
        is_tied=spec.is_tied,
        eps=spec.stack.norm.eps,
        options=rope,
    )


SHAPES: dict[str, Shape] = {
    **{name: _public(name) for name in ("qwen-0.5b", "llama-1b", "llama-8b")},
    "tiny-llama": _tiny_llama(rope_theta=10_000.0),
    "tiny-llama-linear": _tiny_llama(
        rope_theta=10_000.0, rope_scaling={"type": "linear", "factor": 4.0}, attention_bias=True, mlp_bias=True
    ),
    "tiny-llama3-rope": _tiny_llama(rope_theta=500_000.0, rope_scaling=_llama3_rope(8.0, 64)),
    # Rotations for which both ends of YaRN's ramp fall inside a head of 16, between whole dimensions.
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
    # A window that is no multiple of any block size, and fewer KV heads than tensor-parallel ranks.
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
    # Full attention in the first layer, a window in those above.
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
    # Every other layer is global; local ones have a window that no block divides, and their own rotary base.
    "tiny-gemma3": Shape(
        "Gemma3ForCausalLM",
        4,
        64,
        176,
        4,
        1,
        384,
        512,
        32,
        is_tied=True,
        options={
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 19,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    **{
        name: _tiny(architecture, heads, kv_heads, head_dim, **options)
        for name, (architecture, heads, kv_heads, head_dim, options) in TINY_OTHERS.items()
    },
    # Layer norms, learned positions, biases; fused projections stored transposed; a tied output layer.
    "tiny-gpt2": Shape("GPT2LMHeadModel", 3, 64, 176, 4, 4, 384, 512, 16, is_tied=True, eps=1e-5),
    "tiny-opt": Shape("OPTForCausalLM", 3, 64, 176, 4, 4, 384, 512, 16, is_tied=True),
    "tiny-opt-after": Shape(
        "OPTForCausalLM", 3, 64, 176, 4, 4, 384, 512, 16, is_tied=True, options={"do_layer_norm_before": False}
    ),
    # Embeddings narrower than the residual stream, projected to it and back.
    "tiny-opt-narrow": Shape(
        *("OPTForCausalLM", 3, 64, 176, 4, 4, 384, 512, 16, True),
        options={"do_layer_norm_before": False, "word_embed_proj_dim": 40},
    ),
    # Two norms and two parallel branches; q, k and v of each head side by side; a quarter of each head rotated.
    "tiny-neox": Shape(
        "GPTNeoXForCausalLM",
        3,
        64,
        176,
        4,
        4,
        384,
        512,
        16,
        eps=1e-5,
        options={"hidden_act": "gelu", "rotary_pct": 0.25},
    ),
    # One norm for both branches, half of each head rotated, a bias of the output layer.
    "tiny-phi": Shape(
        *("PhiForCausalLM", 3, 64, 176, 4, 4, 384, 512, 16), eps=1e-5, options={"hidden_act": "gelu_new"}
    ),
    # One norm for both branches, separate norm weights for each head, neighbours rotated.
    "tiny-cohere": Shape(
        "CohereForCausalLM", 3, 64, 176, 8, 2, 384, 512, 16, True, 1e-5, {"use_qk_norm": True, "logit_scale": 0.75}
    ),
    # Every fourth layer is not rotated and attends to everything; the others have a window.
    "tiny-cohere2": Shape(
        "Cohere2ForCausalLM", 4, 64, 176, 4, 2, 384, 512, 16, True, 1e-5, {"sliding_window": 19, "logit_scale": 0.75}
    ),
    # Only head_dim is a multiple of 16, and the heads divide by 2 only.
    "tiny-odd": Shape(
        "LlamaForCausalLM", 2, 98, 154, 14, 2, 303, 512, 16, is_tied=True, eps=1e-5, options={"rope_theta": 10_000.0}
    ),
}

TINY = tuple(name for name in SHAPES if name.startswith("tiny-"))
