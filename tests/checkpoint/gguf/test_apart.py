"""GGUF files whose tensors conversion takes apart, with keys for each layer: the configuration and tensors before it.

Keys and forms: llama.cpp's conversion/{deepseek,minicpm,glm,dots1,exaone,minimax,ernie,gemma,granite,falcon_h1,
nemotron,qwen,internlm,jais,bert,t5}.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.model_config import model_spec_of
from neuronserve.server.errors import CheckpointError
from tests.checkpoint.gguf.made import F32, assert_file_has, random_tensors, write_gguf


@dataclass(frozen=True)
class Case:
    """A file: architecture, config.json of its model, keys of the file, and further values for the writer."""

    architecture: str
    own: dict[str, Any]
    keys: dict[str, Any]
    writer: dict[str, Any] = field(default_factory=dict)


def model(hub_name: str, **own: Any) -> dict[str, Any]:
    sizes = dict(
        vocab_size=300, hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=50_000.0,
        tie_word_embeddings=False,
    )  # fmt: skip
    return {"architectures": [hub_name], **sizes, **own}


FILE = {
    "context_length": 512,
    "embedding_length": 64,
    "block_count": 3,
    "feed_forward_length": 176,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 50_000.0,
}
LATENT = {
    "kv_lora_rank": 40,
    "q_lora_rank": 52,
    "qk_nope_head_dim": 18,
    "qk_rope_head_dim": 10,
    "v_head_dim": 13,
    "num_key_value_heads": 4,
}
LATENT_KEYS = {"attention.kv_lora_rank": 40, "attention.q_lora_rank": 52, "rope.dimension_count": 10}
MLA = LATENT_KEYS | {
    "attention.head_count_kv": 1,
    "attention.key_length": 50,
    "attention.value_length": 40,
    "attention.key_length_mla": 28,
    "attention.value_length_mla": 13,
}
ROUTED = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
ROUTED_KEYS = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_shared_count": 2,
    "expert_feed_forward_length": 24,
    "leading_dense_block_count": 1,
    "expert_weights_scale": 1.5,
}
NORMED = {"expert_weights_norm": True}
GROUPS, GROUPS_KEYS = {"n_group": 4, "topk_group": 2}, {"expert_group_count": 4, "expert_group_used_count": 2}
YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.5, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 4.0,
    "rope.scaling.yarn_beta_slow": 0.5,
    "rope.scaling.yarn_log_multiplier": 0.0707,
}
DECIDED = {"mscale": 0.707, "mscale_all_dim": 0.707}
GEMMA4 = dict(
    head_dim=16, global_head_dim=24, hidden_size_per_layer_input=0, sliding_window=21, tie_word_embeddings=True,
    layer_types=["full_attention", "sliding_attention", "full_attention"], final_logit_softcapping=30.0,
    rope_parameters={
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
)  # fmt: skip
GEMMA4_KEYS = {
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 10_000.0,
    "attention.key_length": 24,
    "attention.value_length": 24,
    "attention.key_length_swa": 16,
    "attention.value_length_swa": 16,
    "attention.sliding_window": 21,
    "attention.sliding_window_pattern": [False, True, False],
    "attention.shared_kv_layers": 0,
    "embedding_length_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
    "rope.dimension_count": 24,
}
WHOLE = {"rope_freqs.weight": np.array([1.0] * 3 + [1e30] * 9, np.float32)}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 14, "mamba_n_groups": 2, "mamba_expand": 2}
STATE_KEYS = {"ssm.conv_kernel": 4, "ssm.state_size": 14, "ssm.group_count": 2, "ssm.time_step_rank": 8}
MAMBA_KEYS = STATE_KEYS | {"ssm.inner_size": 128}
SOME = {"attention.head_count_kv": [0, 2, 0]}
TYPES = {"layer_types": ["mamba", "attention", "mamba"]}
GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
GRANITE_KEYS = {"embedding_scale": 12.0, "attention.scale": 0.25, "residual_scale": 0.5, "logit_scale": 4.0}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 12}
DELTA_KEYS = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 72,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "rope.dimension_count": 4,
    "attention.recurrent_layers": [True, False, True],
}
TEXT = dict(
    vocab_size=300, hidden_size=64, intermediate_size=176, num_hidden_layers=3, num_attention_heads=4,
    max_position_embeddings=512,
)  # fmt: skip
TEXT_KEYS = {key: value for key, value in FILE.items() if "kv" not in key and "rms" not in key and "rope" not in key}

PARTS = re.compile(r"0.(mlp.shared_expert.(gate|up)_proj|linear_attn.in_proj_(qkv|z))")

CASES = {
    "deepseek-v2": Case(
        "deepseek2",
        model("DeepseekV2ForCausalLM", **LATENT | ROUTED | {"q_lora_rank": None, "rope_scaling": YARN | DECIDED}),
        MLA | ROUTED_KEYS | YARN_KEYS | {"attention.q_lora_rank": None},
    ),
    "deepseek-v2-groups": Case(
        "deepseek2",
        model("DeepseekV2ForCausalLM", **LATENT | ROUTED | GROUPS, topk_method="group_limited_greedy"),
        MLA | ROUTED_KEYS | GROUPS_KEYS,
    ),
    "deepseek-v3": Case(
        "deepseek2",
        model("DeepseekV3ForCausalLM", **LATENT | ROUTED | GROUPS),
        MLA | ROUTED_KEYS | GROUPS_KEYS | NORMED | {"expert_gating_func": 2},
    ),
    "deepseek-v3-one-matrix": Case(  # files of before latent attention was absorbed
        "deepseek2",
        model("DeepseekV3ForCausalLM", **LATENT | ROUTED | GROUPS),
        LATENT_KEYS | {"attention.key_length": 28, "attention.value_length": 13} | ROUTED_KEYS | GROUPS_KEYS | NORMED,
    ),
    "youtu": Case("deepseek2", model("YoutuForCausalLM", **LATENT), MLA | {"leading_dense_block_count": 3}),
    "minicpm3": Case(
        "minicpm3",
        model("MiniCPM3ForCausalLM", **LATENT, tie_word_embeddings=True),
        LATENT_KEYS | {"attention.key_length": 28},
    ),
    "glm4moe": Case(
        "glm4moe",
        model("Glm4MoeForCausalLM", **ROUTED, use_qk_norm=True, head_dim=16, partial_rotary_factor=0.5),
        ROUTED_KEYS | NORMED | {"block_count": 4, "nextn_predict_layers": 1, "rope.dimension_count": 8},
    ),
    "dots1": Case("dots1", model("Dots1ForCausalLM", **ROUTED, norm_topk_prob=True), ROUTED_KEYS | NORMED),
    "exaone-moe": Case(
        "exaone-moe",
        model(
            "ExaoneMoeForCausalLM",
            **ROUTED | {"num_experts": 8, "num_shared_experts": 2, "sliding_window": 19},
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ),
        ROUTED_KEYS
        | NORMED
        | {"attention.sliding_window": 19, "attention.sliding_window_pattern": [True, True, False]},
    ),
    "minimax-m2": Case(
        "minimax-m2",
        model(
            "MiniMaxM2ForCausalLM",
            num_local_experts=8,
            num_experts_per_tok=3,
            head_dim=24,
            partial_rotary_factor=8 / 24,
        ),
        {"expert_count": 8, "expert_used_count": 3, "attention.key_length": 24, "attention.value_length": 24}
        | {"rope.dimension_count": 8},
    ),
    "ernie4_5-moe": Case(
        "ernie4_5-moe",
        model(
            "Ernie4_5_MoeForCausalLM", moe_num_experts=8, moe_k=3, moe_intermediate_size=24, moe_num_shared_experts=2
        ),
        ROUTED_KEYS | {"interleave_moe_layer_step": 1},
    ),
    "granitemoeshared": Case(
        "granitemoe",
        model(
            "GraniteMoeSharedForCausalLM",
            **GRANITE | {"num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 40},
        ),
        ROUTED_KEYS | GRANITE_KEYS | {"expert_shared_feed_forward_length": 40},
        {"has_experts": True},
    ),
    "internlm2": Case("internlm2", model("LlamaForCausalLM"), {}),
    "jais2": Case("jais2", model("Jais2ForCausalLM", layer_norm_eps=1e-5), {"attention.layer_norm_epsilon": 1e-5}),
    "gemma4": Case(
        "gemma4",
        model("Gemma4ForCausalLM", **GEMMA4, num_global_key_value_heads=1, attention_k_eq_v=True),
        GEMMA4_KEYS | {"attention.head_count_kv": [1, 2, 1]},
        WHOLE,
    ),
    "gemma4-shared": Case(
        "gemma4",
        model("Gemma4ForCausalLM", **GEMMA4, num_kv_shared_layers=1, use_double_wide_mlp=True),
        GEMMA4_KEYS | {"attention.shared_kv_layers": 1, "feed_forward_length": [176, 176, 352]},
        WHOLE,
    ),
    "gemma4-experts": Case(
        "gemma4",
        model(
            "Gemma4ForCausalLM",
            **GEMMA4,
            enable_moe_block=True,
            num_experts=8,
            top_k_experts=3,
            moe_intermediate_size=24,
        ),
        GEMMA4_KEYS | {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24},
        WHOLE,
    ),
    "granite-4": Case(
        "granitehybrid",
        model(
            "GraniteMoeHybridForCausalLM",
            **GRANITE | MAMBA | TYPES,
            num_local_experts=8,
            num_experts_per_tok=3,
            shared_intermediate_size=40,
        ),
        ROUTED_KEYS
        | GRANITE_KEYS
        | MAMBA_KEYS
        | SOME
        | {"expert_shared_feed_forward_length": 40, "rope.scaling.finetuned": False},
        {"has_experts": True, "groups": 2, "num_key_value_heads": 2},
    ),
    "granite-4-dense": Case(
        "granitehybrid",
        model(
            "GraniteMoeHybridForCausalLM",
            **GRANITE | MAMBA | TYPES,
            num_local_experts=0,
            shared_intermediate_size=176,
            position_embedding_type="rope",
        ),
        GRANITE_KEYS | MAMBA_KEYS | SOME | {"rope.scaling.finetuned": True},
        {"has_experts": False, "groups": 2, "num_key_value_heads": 2},
    ),
    "bamba": Case(
        "granitehybrid",
        model("BambaForCausalLM", **MAMBA, attn_layer_indices=[1]),
        MAMBA_KEYS | SOME | {"rope.dimension_count": 8},
        {"groups": 2, "num_key_value_heads": 2},
    ),
    "falcon-h1": Case(
        "falcon-h1",
        model("FalconH1ForCausalLM", **MAMBA, mamba_d_ssm=128, mamba_rms_norm=True, mamba_norm_before_gate=False),
        MAMBA_KEYS,
        {"groups": 2},
    ),
    "nemotron_h": Case(
        "nemotron_h",
        model(
            "NemotronHForCausalLM",
            hybrid_override_pattern="M*-",
            ssm_state_size=14,
            mamba_num_heads=8,
            mamba_head_dim=16,
            n_groups=2,
            head_dim=16,
            layer_norm_epsilon=1e-6,
        ),
        MAMBA_KEYS
        | SOME
        | {"feed_forward_length": [0, 0, 176], "attention.key_length": 16, "attention.value_length": 16}
        | {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-6},
        {"groups": 2, "num_key_value_heads": 2},
    ),
    "nemotron_h_moe": Case(
        "nemotron_h_moe",
        model(
            "NemotronHForCausalLM",
            layers_block_type=["mamba", "attention", "moe"],
            ssm_state_size=14,
            mamba_num_heads=8,
            mamba_head_dim=16,
            n_groups=2,
            head_dim=16,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            n_group=1,
            moe_shared_expert_intermediate_size=40,
            norm_topk_prob=True,
            routed_scaling_factor=1.5,
            layer_norm_epsilon=1e-6,
        ),
        MAMBA_KEYS
        | {"block_count": 4, "nextn_predict_layers": 1, "attention.head_count_kv": [0, 2, 0, 2]}
        | {"feed_forward_length": [0, 0, 24, 24], "attention.key_length": 16, "attention.value_length": 16}
        | {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-6}
        | {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 24, "expert_group_count": 1}
        | {"expert_shared_feed_forward_length": 40, "expert_weights_norm": True, "expert_weights_scale": 1.5},
        {"groups": 2, "num_key_value_heads": 2},
    ),
    "qwen3next": Case(
        "qwen3next",
        model(
            "Qwen3NextForCausalLM",
            **DELTA | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "head_dim": 16},
            shared_expert_intermediate_size=40,
            partial_rotary_factor=0.25,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
        ),
        ROUTED_KEYS | DELTA_KEYS | {"expert_shared_feed_forward_length": 40},
        DELTA | {"group_values": 36},
    ),
    "bert": Case(
        "bert",
        TEXT | {"architectures": ["BertForMaskedLM"], "type_vocab_size": 2},
        TEXT_KEYS | {"attention.layer_norm_epsilon": 1e-12, "tokenizer.ggml.token_type_count": 2},
        {"is_whole": True},
    ),
    "nomic-bert": Case(
        "nomic-bert",
        TEXT | {"architectures": ["NomicBertModel"], "type_vocab_size": 2, "rope_theta": 1000.0},
        TEXT_KEYS
        | {"attention.layer_norm_epsilon": 1e-12, "tokenizer.ggml.token_type_count": 2, "rope.freq_base": 1000.0},
        {"is_whole": True},
    ),
    "modern-bert": Case(
        "modern-bert",
        TEXT | {"architectures": ["ModernBertForMaskedLM"], "local_attention": 16, "norm_eps": 1e-5},
        TEXT_KEYS
        | {"attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": 16, "hidden_activation": "gelu"}
        | {"rope.freq_base": 160_000.0, "rope.freq_base_swa": 10_000.0, "attention.sliding_window_pattern": 3},
        {"is_whole": True},
    ),
    "gemma-embedding": Case(
        "gemma-embedding",
        model(
            "Gemma3TextModel",
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=17,
            use_bidirectional_attention=True,
        ),
        {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 17}
        | {"rope.freq_base_swa": 10_000.0},
    ),
    "t5": Case(
        "t5",
        {"architectures": ["T5ForConditionalGeneration"], "vocab_size": 300, "d_model": 64, "d_kv": 16, "d_ff": 176}
        | {"num_layers": 3, "num_decoder_layers": 2, "num_heads": 4, "n_positions": 512}
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0},
        TEXT_KEYS
        | {"attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": 16, "decoder_block_count": 2}
        | {"attention.relative_buckets_count": 32, "decoder_start_token_id": 0},
        {"is_whole": True},
    ),
}


def file_of(case: Case) -> dict[str, Any]:
    """Return what the writer takes for a file of a case."""
    keys = case.keys if case.writer.get("is_whole") else FILE | case.keys
    sizes = {"vocab_size": 300, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "nope": 18}
    stated = {key: value for key, value in keys.items() if value is not None}
    return sizes | case.writer | {"keys": stated, "gguf": case.architecture}


@pytest.mark.parametrize("name", CASES)
def test_a_file_has_the_configuration_and_the_tensors(tmp_path: Path, name: str) -> None:
    assert_file_has(tmp_path, CASES[name].own, file_of(CASES[name]))


@pytest.mark.parametrize(
    ("name", "module"), [("granite-4", "shared_mlp.input_linear"), ("qwen3next", "linear_attn.in_proj_qkvz")]
)
def test_codes_of_parts_are_read_without_loss(tmp_path: Path, name: str, module: str) -> None:
    spec, kind = model_spec_of(CASES[name].own), gguf.GGMLQuantizationType.Q8_0
    tensors = random_tensors(spec)
    path = write_gguf(
        tmp_path / "m.gguf", file_of(CASES[name]), tensors, lambda name: kind if PARTS.search(name) else F32
    )
    checkpoint = Checkpoint.open(gguf_directory(path, tmp_path / "cache"), spec)
    weight = f"model.layers.0.{module}.weight"
    expected = gguf.quants.dequantize(gguf.quants.quantize(tensors[weight], kind), kind)
    np.testing.assert_array_equal(checkpoint.load(weight, slice(3, 71)), expected[3:71])
    assert (checkpoint.held_by(weight), checkpoint.group(weight)) == ("int8-groups", 32)
    np.testing.assert_array_equal(
        checkpoint.load_groups(weight, slice(3, 71), slice(32, 64)).values(), expected[3:71, 32:]
    )


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = CASES["deepseek-v3"]
    spec = model_spec_of(case.own)
    path = write_gguf(tmp_path / "m.gguf", file_of(case), random_tensors(spec))
    path.write_bytes(path.read_bytes().replace(b"blk.1.attn_v_b.weight", b"blk.1.attn_x_b.weight"))
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.kv_b_proj\.weight: missing"):
        Checkpoint.open(gguf_directory(path, tmp_path / "cache"), spec)
