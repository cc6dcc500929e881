"""Keys of GGUF files as keys of config.json: a row for each architecture; more are in more_architectures.py.

A row names the architecture in config.json, its keys that differ from the common ones, and values that a GGUF file
leaves out. Source of the rows: llama.cpp's conversion scripts (conversion/*.py; `find_hparam` for the common keys)
and its readers (src/models/*.cpp), as in llama-cpp-python 0.3.36; the architecture's configuration class in
transformers for names.
"""

from __future__ import annotations

from ...typed_json import shown
from .architecture import Architecture, Config, Read, keys, names_of, part_of_heads, window_or_none
from .encoder_architectures import ENCODING
from .expert_architectures import BALANCED
from .files import ARCHITECTURE, GgufFiles
from .more_architectures import MORE
from .state_architectures import GRANITE, GRANITE_WORDS, STATES


def _gemma_scale(largest: int) -> Read:
    """Return a function for the scale of scores: the size of a head, or the hidden size over the heads.

    The second is the scale of the family's largest model, which has `largest` layers.
    """

    def read(_: GgufFiles, config: Config) -> Config:
        is_largest = config.get("num_hidden_layers") == largest
        width = config["hidden_size"] // config["num_attention_heads"] if is_largest else config["head_dim"]
        return {"query_pre_attn_scalar": width}

    return read


def _llama(_: GgufFiles, config: Config) -> Config:
    """Mixtral is Llama with experts."""
    return names_of("mixtral") | {"sliding_window": None} if config.get("num_local_experts") else {}


def _granite_moe(_: GgufFiles, config: Config) -> Config:
    """Return the network that all tokens take, of files that have one."""
    if not (size := config.get("shared_expert_intermediate_size")):
        return {}
    return names_of("granitemoeshared") | {"shared_intermediate_size": size}


def _gpt_oss(_: GgufFiles, config: Config) -> Config:
    """Set `truncate`, which the model's own config.json has: the ends of YaRN's ramp are not rounded."""
    rope = config.get("rope_scaling")
    return {"rope_scaling": {**rope, "truncate": False}} if rope else {}


def _llama4(_: GgufFiles, config: Config) -> Config:
    """Derive attention: a window of 0 means that no layer has chunks and all layers are rotated."""
    plain: Config = {}
    if config.get("sliding_window") == 0:
        layers = config["num_hidden_layers"]
        plain = {"layer_types": ["full_attention"] * layers, "no_rope_layers": [1] * layers}
    return {"use_qk_norm": config.get("num_local_experts") != _MAVERICK_EXPERTS, **plain}


_MAVERICK_EXPERTS = 128  # the one model of its family without norms of heads
_GEGLU: Config = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_LOCAL_EXPERTS = keys("expert_count=num_local_experts")
_NEOX = keys("rope.freq_base=rotary_emb_base use_parallel_residual=use_parallel_residual")
_LLAMA4 = _LOCAL_EXPERTS | keys(
    "feed_forward_length=intermediate_size_mlp expert_feed_forward_length=intermediate_size"
    " interleave_moe_layer_step=interleave_moe_layer_step"
)
_LOCAL_BASE = keys("rope.freq_base_swa=rope_local_base_freq")
_CHOSEN: Config = {"norm_topk_prob": True}  # llama.cpp normalizes the weights of chosen experts, though no key says so

ARCHITECTURES = {
    row.name: row
    for row in (
        Architecture("llama", "llama", _LOCAL_EXPERTS, read=_llama, has_rotary_pairs=True),
        Architecture("internlm2", "llama", has_rotary_pairs=True),  # with q, k and v apart
        Architecture("qwen2"),
        Architecture("qwen2vl", "qwen2"),  # of text alone
        Architecture("qwen3"),
        Architecture("qwen3vl", "qwen3"),  # of text alone
        Architecture("qwen2moe", "qwen2_moe"),
        Architecture("qwen3moe", "qwen3_moe", values=_CHOSEN),
        Architecture("qwen3vlmoe", "qwen3_moe", values=_CHOSEN),  # of text alone
        Architecture("gemma", values=_GEGLU, norm_shift=1.0),
        Architecture("gemma2", values=_GEGLU, read=_gemma_scale(46), norm_shift=1.0),
        Architecture("gemma3", "gemma3_text", _LOCAL_BASE, _GEGLU, _gemma_scale(62), norm_shift=1.0),
        Architecture("phi3", read=window_or_none),
        Architecture("granite", "granite", GRANITE, has_rotary_pairs=True),
        Architecture(
            "granitemoe", "granitemoe", GRANITE, read=_granite_moe, has_rotary_pairs=True, words=GRANITE_WORDS
        ),
        Architecture("llama4", "llama4_text", _LLAMA4, read=_llama4),
        Architecture("phi2", "phi", read=part_of_heads()),
        Architecture("gptneox", "gpt_neox", _NEOX, read=part_of_heads("rotary_pct"), has_heads_apart=True),
        Architecture("olmo2", read=lambda _, config: names_of("olmo3") if config.get("sliding_window") else {}),
        Architecture("olmoe"),
        Architecture("smollm3", has_rotary_pairs=True),
        Architecture("command-r", "cohere"),
        Architecture("cohere2"),
        Architecture("gpt-oss", "gpt_oss", _LOCAL_EXPERTS, read=_gpt_oss),
        Architecture("gpt2", values={"activation_function": "gelu_new"}),
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
