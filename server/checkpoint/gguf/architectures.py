"""Keys of GGUF files as keys of config.json: a row for each architecture; more are in more_architectures.py.

A row names the architecture in config.json, its keys that differ from the common ones, and values that a GGUF file
leaves out. Source of the rows: llama.cpp's conversion scripts (conversion/*.py; `find_hparam` for the common keys)
and its readers (src/models/*.cpp), as in llama-cpp-python 0.3.36; the architecture's configuration class in
transformers for names.
"""

from __future__ import annotations

from collections.abc import Callable

from ...typed_json import shown
from .architecture import Architecture, Config, Keys, part_of_heads, window_or_none
from .encoder_architectures import ENCODING
from .expert_architectures import BALANCED
from .files import ARCHITECTURE, GgufFiles
from .more_architectures import MORE
from .state_architectures import GRANITE, GRANITE_WORDS, STATES


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


def _granite_moe(config: Config) -> Config:
    """Return the network that all tokens take, of files that have one."""
    if not (size := config.get("shared_expert_intermediate_size")):
        return {}
    names: Config = {"architectures": ["GraniteMoeSharedForCausalLM"], "model_type": "granitemoeshared"}
    return names | {"shared_intermediate_size": size}


def _olmo(config: Config) -> Config:
    """Olmo 3 is Olmo 2 with windows."""
    return {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"} if config.get("sliding_window") else {}


def _gpt_oss(config: Config) -> Config:
    """Set `truncate`, which the model's own config.json has: the ends of YaRN's ramp are not rounded."""
    rope = config.get("rope_scaling")
    return {"rope_scaling": {**rope, "truncate": False}} if rope else {}


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
        Architecture("phi3", "Phi3ForCausalLM", "phi3", derived=window_or_none),
        Architecture("granite", "GraniteForCausalLM", "granite", GRANITE, has_rotary_pairs=True),
        Architecture(
            "granitemoe",
            "GraniteMoeForCausalLM",
            "granitemoe",
            GRANITE,
            derived=_granite_moe,
            has_rotary_pairs=True,
            words=GRANITE_WORDS,
        ),
        Architecture("llama4", "Llama4ForCausalLM", "llama4_text", _LLAMA4, derived=_llama4),
        Architecture("phi2", "PhiForCausalLM", "phi", derived=part_of_heads("partial_rotary_factor")),
        Architecture(
            "gptneox",
            "GPTNeoXForCausalLM",
            "gpt_neox",
            _NEOX,
            derived=part_of_heads("rotary_pct"),
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
        *MORE,
        *BALANCED,
        *STATES,
        *ENCODING,
    )
}


def architecture_of(files: GgufFiles) -> Architecture:
    """Return the row of a file. Raises CheckpointError for an architecture without a row."""
    name = files.metadata.get(ARCHITECTURE)
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise files.error(f"{ARCHITECTURE} is {shown(name)}: read are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]
