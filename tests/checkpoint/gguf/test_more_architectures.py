"""GGUF files of families with keys and layouts of their own: the configuration and tensors they were made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.checkpoint.gguf.made import assert_file_has, write_keys

Edit = Callable[[gguf.GGUFWriter], object]
SIZES = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
RMS, LAYER = {"rms_norm_eps": 1e-5}, {"layer_norm_eps": 1e-5}


def renamed(**names: str) -> dict[str, Any]:
    """Sizes under a family's own keys."""
    return {names.get(key, key): value for key, value in (SIZES | {"eps": 1e-5}).items()}


def expert_sizes(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(48)
    writer.add_expert_shared_count(1)


def state_sizes(writer: gguf.GGUFWriter) -> None:
    write_keys(
        writer,
        {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 6,
            "ssm.inner_size": 6 * 32,
            "full_attention_interval": 3,
        },
    )


def short_convolutions(writer: gguf.GGUFWriter) -> None:
    writer.add_shortconv_l_cache(3)
    writer.add_leading_dense_block_count(1)


DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "head_dim": 16,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 24,
}
CONV = {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False}


def pattern(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(19)
    writer.add_sliding_window_pattern([True, True, False])


# Architecture, its name in the file, the family's keys, what a writer takes, and more keys of the file.
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any], tuple[Edit, ...]]] = [
    ("SeedOssForCausalLM", "seed_oss", renamed(eps="rms_norm_eps") | {"head_dim": 24}, RMS | {"head_dim": 24}, ()),
    (
        "Glm4ForCausalLM",
        "glm4",
        renamed(eps="rms_norm_eps") | {"head_dim": 16},
        RMS | {"partial_rotary_factor": 0.5},
        (),
    ),
    ("ExaoneForCausalLM", "exaone", renamed(num_hidden_layers="num_layers", eps="layer_norm_epsilon"), RMS, ()),
    (
        "Exaone4ForCausalLM",
        "exaone4",
        renamed(eps="rms_norm_eps")
        | {"sliding_window": 19, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        RMS,
        (pattern,),
    ),
    ("Exaone4ForCausalLM", "exaone4", renamed(eps="rms_norm_eps") | {"sliding_window": None}, RMS, ()),
    (
        "MiniCPMForCausalLM",
        "minicpm",
        renamed(eps="rms_norm_eps") | {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 16},
        RMS | {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 * 3**-0.5, "logits_scaling": 4.0},
        (),
    ),
    ("ArceeForCausalLM", "arcee", renamed(eps="rms_norm_eps"), RMS, ()),
    ("NemotronForCausalLM", "nemotron", renamed(eps="norm_eps"), LAYER | {"partial_rotary_factor": 0.5}, ()),
    (
        "StableLmForCausalLM",
        "stablelm",
        renamed(eps="layer_norm_eps") | {"use_qkv_bias": True, "use_parallel_residual": True},
        LAYER | {"partial_rotary_factor": 0.25, "use_parallel_residual": True},
        (),
    ),
    (
        "StableLmForCausalLM",
        "stablelm",
        renamed(eps="layer_norm_eps") | {"partial_rotary_factor": 0.5},
        LAYER | {"partial_rotary_factor": 0.5, "use_parallel_residual": False},
        (),
    ),
    ("OlmoForCausalLM", "olmo", renamed(), LAYER, ()),
    ("Ernie4_5ForCausalLM", "ernie4_5", renamed(eps="rms_norm_eps") | {"use_bias": True, "head_dim": 16}, RMS, ()),
    ("HunYuanDenseV1ForCausalLM", "hunyuan-dense", renamed(eps="rms_norm_eps"), RMS, ()),
    (
        "HunYuanMoEV1ForCausalLM",
        "hunyuan-moe",
        renamed(eps="rms_norm_eps") | {"num_experts": 4, "moe_topk": [2] * 3, "moe_intermediate_size": [48] * 3},
        RMS,
        (expert_sizes,),
    ),
    ("Starcoder2ForCausalLM", "starcoder2", renamed(eps="norm_epsilon"), LAYER, ()),
    (
        "GPTBigCodeForCausalLM",
        "starcoder",
        renamed(
            hidden_size="n_embd",
            intermediate_size="n_inner",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            max_position_embeddings="n_positions",
            eps="layer_norm_epsilon",
            num_key_value_heads="unused",
        ),
        LAYER | {"num_key_value_heads": 1},
        (),
    ),
    (
        "FalconForCausalLM",
        "falcon",
        renamed(num_key_value_heads="num_kv_heads", intermediate_size="ffn_hidden_size", eps="layer_norm_epsilon")
        | {"new_decoder_architecture": True, "multi_query": False},
        LAYER,
        (),
    ),
    (
        "FalconForCausalLM",
        "falcon",
        renamed(num_key_value_heads="unused", intermediate_size="ffn_hidden_size", eps="layer_norm_epsilon"),
        LAYER | {"num_key_value_heads": 1},
        (),
    ),
    (
        "BloomForCausalLM",
        "bloom",
        renamed(
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            max_position_embeddings="seq_length",
            eps="layer_norm_epsilon",
            num_key_value_heads="unused",
            intermediate_size="unused",
        ),
        LAYER | {"num_key_value_heads": 4, "intermediate_size": 256},
        (),
    ),
    (
        "MptForCausalLM",
        "mpt",
        renamed(
            hidden_size="d_model",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            max_position_embeddings="max_seq_len",
            num_key_value_heads="unused",
            eps="layer_norm_epsilon",
            intermediate_size="unused",
        )
        | {"attn_config": {"alibi": True, "alibi_bias_max": 4.0}},
        LAYER | {"num_key_value_heads": 4, "intermediate_size": 256},
        (lambda writer: writer.add_max_alibi_bias(4.0),),
    ),
    (
        "Lfm2ForCausalLM",
        "lfm2",
        renamed(eps="norm_eps") | CONV,
        RMS | {"num_key_value_heads": [0, 2, 0]},
        (short_convolutions,),
    ),
    (
        "Lfm2MoeForCausalLM",
        "lfm2moe",
        renamed(eps="norm_eps") | CONV | EXPERTS | {"num_dense_layers": 1, "tie_word_embeddings": True},
        RMS | {"num_key_value_heads": [0, 2, 0]},
        (short_convolutions, expert_sizes),
    ),
    (
        "Qwen3_5ForCausalLM",
        "qwen35",
        renamed(eps="rms_norm_eps") | DELTA | {"full_attention_interval": 3},
        RMS | DELTA | {"partial_rotary_factor": 0.25},
        (state_sizes,),
    ),
    (
        "Qwen3_5ForCausalLM",
        "qwen35",
        renamed(eps="rms_norm_eps") | DELTA | {"full_attention_interval": 3, "num_hidden_layers": 3},
        RMS | DELTA | {"partial_rotary_factor": 0.25, "num_hidden_layers": 4},
        (state_sizes, lambda writer: writer.add_nextn_predict_layers(1)),
    ),
    (
        "Qwen3_5MoeForCausalLM",
        "qwen35moe",
        renamed(eps="rms_norm_eps") | DELTA | EXPERTS | {"full_attention_interval": 3},
        RMS | DELTA | {"partial_rotary_factor": 0.25, "shared_expert_intermediate_size": 24},
        (state_sizes, expert_sizes),
    ),
]


@pytest.mark.parametrize(("hub_name", "architecture", "own", "file", "edits"), CASES, ids=[row[1] for row in CASES])
def test_a_file_has_the_configuration_and_the_tensors(
    tmp_path: Path, hub_name: str, architecture: str, own: dict[str, Any], file: dict[str, Any], edits: tuple[Edit, ...]
) -> None:
    own = {"tie_word_embeddings": False, "rope_theta": 50_000.0} | own
    file = SIZES | {"rope_theta": 50_000.0, "gguf": architecture, "model_type": architecture} | file
    assert_file_has(tmp_path, {"architectures": [hub_name]} | own, file, edits)
