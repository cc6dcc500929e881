"""Keys of GGUF files as keys of config.json: a row for each architecture.

A row names the architecture in config.json, its keys that differ from the common ones, and values that a GGUF file
leaves out. Source of the rows: llama.cpp's conversion scripts (conversion/*.py; `find_hparam` for the common keys)
and its readers (src/models/*.cpp), as in llama-cpp-python 0.3.36; the architecture's configuration class in
transformers for names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...typed_json import shown
from .files import GgufFiles

Config = dict[str, Any]
Keys = Mapping[str, str]

ARCHITECTURE = "general.architecture"
ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"

# Key of a GGUF file after the architecture's name -> key of config.json.
COMMON: Keys = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row. `name` is the file's; `values` and `derived` override what the keys give."""

    name: str
    hub_name: str  # the first of `architectures` in config.json
    model_type: str
    keys: Keys = field(default_factory=dict)  # that differ from COMMON
    values: Config = field(default_factory=dict)
    derived: Callable[[Config], Config] | None = None
    has_rotary_pairs: bool = False  # rows of query and key heads are in the order of rotary pairs
    norm_shift: float = 0.0  # added to the weights of norms in the file
    words: Keys = field(default_factory=dict)  # words in the model's tensor names, each with the package's word
    has_heads_apart: bool = False  # the file has q of all heads, then k, then v; the model has q, k and v of each head

    def is_read_with_config(self, tensor: str) -> bool:
        """Return whether a tensor holds values of config.json, not weights."""
        return tensor in (ROPE_FREQS, LONG_FACTORS, SHORT_FACTORS)


def _gemma_scale(largest: int) -> Callable[[Config], Config]:
    """Return a function for the scale of scores: the size of a head, or the hidden size over the heads.

    The second is the scale of the family's largest model, which has `largest` layers.
    """

    def derived(config: Config) -> Config:
        is_largest = config.get("num_hidden_layers") == largest
        width = config["hidden_size"] // config["num_attention_heads"] if is_largest else config["head_dim"]
        return {"query_pre_attn_scalar": width}

    return derived


def _mixtral_or_llama(config: Config) -> Config:
    return _MIXTRAL if config.get("num_local_experts") else {}


def _window_or_none(config: Config) -> Config:
    return {"sliding_window": config.get("sliding_window") or None}


def _olmo(config: Config) -> Config:
    """Olmo 3 is Olmo 2 with windows."""
    return {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"} if config.get("sliding_window") else {}


def _gpt_oss(config: Config) -> Config:
    """Set `truncate`, which the model's own config.json has: the ends of YaRN's ramp are not rounded."""
    rope = config.get("rope_scaling")
    return {"rope_scaling": {**rope, "truncate": False}} if rope else {}


def _part_of_heads(key: str) -> Callable[[Config], Config]:
    """Return a function for the rotated share of a head: all of it where the file does not say."""
    return lambda config: {key: config.get("partial_rotary_factor", 1.0)}


def _llama4(config: Config) -> Config:
    """Derive attention: a window of 0 means that no layer has chunks and all layers are rotated."""
    plain: Config = {}
    if config.get("sliding_window") == 0:
        layers = config["num_hidden_layers"]
        plain = {"layer_types": ["full_attention"] * layers, "no_rope_layers": [1] * layers}
    return {"use_qk_norm": config.get("num_local_experts") != _MAVERICK_EXPERTS, **plain}


_MAVERICK_EXPERTS = 128  # the one model of its family without norms of heads
_MIXTRAL: Config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": None}
_GEGLU: Config = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_LOCAL_EXPERTS: Keys = {"expert_count": "num_local_experts"}
_GPT2: Keys = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
_NEOX: Keys = {"rope.freq_base": "rotary_emb_base", "use_parallel_residual": "use_parallel_residual"}
_LLAMA4: Keys = {
    **_LOCAL_EXPERTS,
    "feed_forward_length": "intermediate_size_mlp",
    "expert_feed_forward_length": "intermediate_size",
    "interleave_moe_layer_step": "interleave_moe_layer_step",
}
_GRANITE: Keys = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_local_experts",
}

ARCHITECTURES = {
    row.name: row
    for row in (
        Architecture(
            "llama",
            "LlamaForCausalLM",
            "llama",
            _LOCAL_EXPERTS,
            derived=_mixtral_or_llama,
            has_rotary_pairs=True,
        ),
        Architecture("qwen2", "Qwen2ForCausalLM", "qwen2"),
        Architecture("qwen3", "Qwen3ForCausalLM", "qwen3"),
        Architecture("qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe"),
        # llama.cpp normalizes the weights of the chosen experts, though no key says so.
        Architecture("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", values={"norm_topk_prob": True}),
        Architecture("gemma", "GemmaForCausalLM", "gemma", values=_GEGLU, norm_shift=1.0),
        Architecture("gemma2", "Gemma2ForCausalLM", "gemma2", values=_GEGLU, derived=_gemma_scale(46), norm_shift=1.0),
        Architecture(
            "gemma3",
            "Gemma3ForCausalLM",
            "gemma3_text",
            {"rope.freq_base_swa": "rope_local_base_freq"},
            _GEGLU,
            _gemma_scale(62),
            norm_shift=1.0,
        ),
        Architecture("phi3", "Phi3ForCausalLM", "phi3", derived=_window_or_none),
        Architecture("granite", "GraniteForCausalLM", "granite", _GRANITE, has_rotary_pairs=True),
        Architecture(
            "granitemoe",
            "GraniteMoeForCausalLM",
            "granitemoe",
            _GRANITE,
            has_rotary_pairs=True,
            words={".router.": ".router.layer.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."},
        ),
        Architecture("llama4", "Llama4ForCausalLM", "llama4_text", _LLAMA4, derived=_llama4),
        Architecture("phi2", "PhiForCausalLM", "phi", derived=_part_of_heads("partial_rotary_factor")),
        Architecture(
            "gptneox",
            "GPTNeoXForCausalLM",
            "gpt_neox",
            _NEOX,
            derived=_part_of_heads("rotary_pct"),
            has_heads_apart=True,
        ),
        Architecture("olmo2", "Olmo2ForCausalLM", "olmo2", derived=_olmo),
        Architecture("olmoe", "OlmoeForCausalLM", "olmoe"),
        Architecture("smollm3", "SmolLM3ForCausalLM", "smollm3", has_rotary_pairs=True),
        Architecture("command-r", "CohereForCausalLM", "cohere"),
        Architecture("cohere2", "Cohere2ForCausalLM", "cohere2"),
        Architecture(
            "gpt-oss", "GptOssForCausalLM", "gpt_oss", {"expert_count": "num_local_experts"}, derived=_gpt_oss
        ),
        Architecture("gpt2", "GPT2LMHeadModel", "gpt2", _GPT2, {"activation_function": "gelu_new"}),
    )
}


def architecture_of(files: GgufFiles) -> Architecture:
    """Return the row of a file. Raises CheckpointError for an architecture without a row."""
    name = files.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise files.error(f"{ARCHITECTURE} is {shown(name)}: read are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
