"""Families against transformers, live: one row each. All logits, for one core and several, and 8-bit weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Quantization
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.families import model_spec_of
from tests.depth import representative

VOCAB, POSITIONS = 131, 256
TOKENS = np.random.default_rng(1).integers(0, VOCAB, 150).tolist()
FLOAT32_TOLERANCE = 1e-5  # largest error over largest logit
INT8_TOLERANCE = 0.08  # mean error over mean logit
MEDIAN_TOLERANCE = 0.05  # the same of the token in the middle

Config = dict[str, Any]
SIZES: Config = {
    "vocab_size": VOCAB,
    "hidden_size": 60,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
ODD = SIZES | {"num_attention_heads": 6, "num_key_value_heads": 3}  # heads of ten elements
ODD.pop("head_dim")
WINDOW: Config = {"sliding_window": 21, "num_hidden_layers": 4}


@dataclass(frozen=True)
class Family:
    """A model_type of transformers, and its configuration. `turn` makes a file of it that transformers cannot write."""

    model_type: str
    options: Config = field(default_factory=dict)
    turn: Callable[[Config, dict[str, torch.Tensor]], tuple[Config, dict[str, torch.Tensor]]] | None = None
    inputs: Callable[[], Config] = dict
    attention: str = "eager"


def renamed(name: str, words: dict[str, str]) -> str:
    for word, own in words.items():
        name = name.replace(word, own)
    return name


def internlm2(config: Config, tensors: dict[str, torch.Tensor]) -> tuple[Config, dict[str, torch.Tensor]]:
    """InternLM 2's file of a Llama."""
    words = {"embed_tokens": "tok_embeddings", "self_attn.o_proj": "attention.wo", "lm_head": "output"}
    words |= {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    words |= {f"mlp.{name}_proj": f"feed_forward.{own}" for name, own in (("gate", "w1"), ("up", "w3"), ("down", "w2"))}
    out = {
        renamed(name, words): values for name, values in tensors.items() if ".self_attn." not in name or "o_" in name
    }
    kv = config["num_key_value_heads"]
    for i in range(config["num_hidden_layers"]):
        parts = [tensors[f"model.layers.{i}.self_attn.{each}_proj.weight"] for each in "qkv"]
        turns = torch.cat([part.reshape(kv, -1, part.shape[-1]) for part in parts], dim=1)
        out[f"model.layers.{i}.attention.wqkv.weight"] = turns.reshape(-1, turns.shape[-1]).contiguous()
    rope = {"rope_theta": 10_000.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}
    return config | rope | {
        "architectures": ["InternLM2ForCausalLM"],
        "bias": False,
        "auto_map": {"AutoModel": "x"},
    }, out


def minicpm(config: Config, tensors: dict[str, torch.Tensor]) -> tuple[Config, dict[str, torch.Tensor]]:
    """MiniCPM's file of a Granite."""
    keys = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 15, "architectures": ["MiniCPMForCausalLM"]}
    return config | keys, tensors


def baichuan(config: Config, tensors: dict[str, torch.Tensor]) -> tuple[Config, dict[str, torch.Tensor]]:
    """Baichuan 7B's file of a Llama."""
    out = {name: values for name, values in tensors.items() if ".self_attn." not in name or "o_" in name}
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn."
        out[f"{at}W_pack.weight"] = torch.cat([tensors[f"{at}{each}_proj.weight"] for each in "qkv"])
    return config | {"architectures": ["BaichuanForCausalLM"], "auto_map": {"AutoModel": "x"}}, out


def baichuan_13b(config: Config, tensors: dict[str, torch.Tensor]) -> tuple[Config, dict[str, torch.Tensor]]:
    """Baichuan 13B's file of a Llama."""
    config, tensors = baichuan(config, tensors)
    del config["max_position_embeddings"]
    return config | {"model_max_length": POSITIONS}, tensors


EXPERTS: Config = {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
GEMMA4 = ODD | {
    "head_dim": 16,
    "global_head_dim": 24,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 21,
    "num_hidden_layers": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "final_logit_softcapping": 30.0,
}


GEMMA3N = GEMMA4 | {
    "hidden_size_per_layer_input": 48,
    "vocab_size_per_layer_input": VOCAB - 40,
    "num_kv_shared_layers": 2,
    "laurel_rank": 24,
    "intermediate_size": [88, 88, 64, 88, 120],
    "activation_sparsity_pattern": [0.95, 0.6, 0.0, 0.3, 0.0],
}
GEMMA3N.pop("global_head_dim")


def slopes_instead_of_rotation() -> dict[str, torch.Tensor]:
    """Inputs of a Llama of six heads: all tokens at position 0, and a mask that takes a slope of each head off."""
    slopes = torch.tensor([2.0**-power for power in (2, 4, 6, 8, 1, 3)])[:, None, None]
    distances = torch.arange(len(TOKENS))[:, None] - torch.arange(len(TOKENS))[None, :]
    mask = torch.where(distances >= 0, -slopes * distances, torch.finfo(torch.float32).min)
    return {"position_ids": torch.zeros((1, len(TOKENS)), dtype=torch.long), "attention_mask": mask[None]}


GPT = {"vocab_size": VOCAB, "n_embd": 60, "n_layer": 3, "n_head": 5, "n_positions": POSITIONS, "n_inner": 88}
FAMILIES: dict[str, Family] = {
    "seed_oss": Family("seed_oss", SIZES | {"attention_out_bias": True}),
    "glm": Family("glm", SIZES | {"head_dim": 24}),
    "glm4": Family("glm4", ODD | {"head_dim": 20}),
    "exaone": Family("exaone", ODD),
    "exaone4": Family("exaone4", ODD | WINDOW),
    "exaone4-whole": Family("exaone4", SIZES | {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "internlm2": Family("llama", ODD, internlm2),
    "internlm3": Family("internlm3", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "minicpm": Family(
        "granite",
        ODD
        | {"embedding_multiplier": 12.0, "residual_multiplier": 1.4 / 3**0.5, "logits_scaling": 4.0}
        | {"attention_multiplier": 10**-0.5, "tie_word_embeddings": True},
        minicpm,
    ),
    "cwm": Family("cwm", SIZES | WINDOW),
    "arcee": Family("arcee", ODD | {"mlp_bias": True}),
    "jais2": Family("jais2", SIZES),
    "nemotron": Family("nemotron", SIZES | {"attention_bias": True}),
    "stablelm": Family("stablelm", ODD | {"use_qkv_bias": True, "partial_rotary_factor": 0.4}),
    "stablelm-parallel": Family("stablelm", ODD | {"use_parallel_residual": True, "partial_rotary_factor": 0.4}),
    "helium": Family("helium", ODD | {"head_dim": 10}),
    "olmo": Family("olmo", ODD),
    "ernie4_5": Family("ernie4_5", SIZES | {"use_bias": True}),
    "hunyuan": Family("hunyuan_v1_dense", SIZES | {"attention_bias": True}),
    "hunyuan-alpha": Family(
        "hunyuan_v1_dense", SIZES | {"rope_scaling": {"type": "dynamic", "alpha": 50.0, "factor": 1.0}}
    ),
    "hunyuan-moe": Family("hunyuan_v1_moe", SIZES | {"num_experts": 5, "moe_topk": [3, 3, 3]}),
    "hyperclovax": Family(
        "hyperclovax", ODD | {"residual_multiplier": 0.3, "logits_scaling": 0.5, "embedding_multiplier": 4.0}
    ),
    "granitemoeshared": Family(
        "granitemoeshared",
        ODD | {"shared_intermediate_size": 56, "num_local_experts": 5, "attention_multiplier": 0.3},
    ),
    "flex_olmo": Family("flex_olmo", ODD | {"num_experts": 5, "num_experts_per_tok": 3}),
    "starcoder2": Family("starcoder2", ODD | {"sliding_window": 21}),
    "gpt_bigcode": Family("gpt_bigcode", GPT),
    "gpt_bigcode-heads": Family("gpt_bigcode", GPT | {"multi_query": False}),
    "gptj": Family("gptj", GPT | {"rotary_dim": 6}),
    "gpt_neo": Family(
        "gpt_neo",
        {"vocab_size": VOCAB, "hidden_size": 60, "num_layers": 4, "num_heads": 5, "max_position_embeddings": POSITIONS}
        | {"attention_types": [[["global", "local"], 2]], "window_size": 21},
    ),
    "falcon": Family("falcon", ODD | {"multi_query": True}),
    "falcon-groups": Family("falcon", ODD | {"new_decoder_architecture": True, "num_kv_heads": 3, "bias": True}),
    "falcon-11b": Family(
        "falcon", ODD | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}
    ),
    # transformers rounds slopes of other numbers of heads to bfloat16; its eager form takes them off twice.
    "falcon-rw": Family(
        "falcon",
        ODD
        | {
            "hidden_size": 72,
            "num_attention_heads": 4,
            "multi_query": False,
            "parallel_attn": False,
            "alibi": True,
            "bias": True,
        },
        attention="sdpa",
    ),
    "bloom": Family("bloom", {"vocab_size": VOCAB, "hidden_size": 60, "n_layer": 3, "n_head": 5, "pad_token_id": 0}),
    "mpt": Family("mpt", {"vocab_size": VOCAB, "d_model": 60, "n_layers": 3, "n_heads": 6, "max_seq_len": POSITIONS}),
    "gemma4": Family("gemma4_text", GEMMA4),
    "gemma4-values-are-keys": Family(
        "gemma4_text", GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 2}
    ),
    "gemma4-shared": Family(
        "gemma4_text",
        GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        inputs=lambda: {"output_hidden_states": True},
    ),
    "gemma4-inputs": Family(
        "gemma4_text",
        GEMMA4
        | {"hidden_size_per_layer_input": 48, "vocab_size_per_layer_input": VOCAB, "num_kv_shared_layers": 2}
        | {"use_double_wide_mlp": True},
        inputs=lambda: {"output_hidden_states": True},
    ),
    "gemma4-experts": Family(
        "gemma4_text",
        GEMMA4 | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 3, "moe_intermediate_size": 40},
    ),
    "glm4_moe": Family("glm4_moe", ODD | EXPERTS | {"use_qk_norm": True, "partial_rotary_factor": 0.4}),
    "glm4_moe-groups": Family("glm4_moe", SIZES | EXPERTS | {"n_group": 3, "topk_group": 2, "attention_bias": True}),
    "solar_open": Family("solar_open", ODD | {**EXPERTS, "head_dim": 16, "first_k_dense_replace": 0}),
    "dots1": Family("dots1", ODD | EXPERTS | {"norm_topk_prob": True, "sliding_window": 21, "max_window_layers": 1}),
    "exaone_moe": Family("exaone_moe", ODD | EXPERTS | WINDOW | {"num_experts": 6, "num_shared_experts": 1}),
    "minimax_m2": Family("minimax_m2", SIZES | {"num_local_experts": 5, "num_experts_per_tok": 3, "rotary_dim": 8}),
    "ernie4_5_moe": Family(
        "ernie4_5_moe",
        ODD | {"moe_num_experts": 5, "moe_k": 3, "moe_intermediate_size": 24, "moe_layer_end_index": 2},
    ),
    "gemma3n": Family("gemma3n_text", GEMMA3N),
    "gemma3n-two-streams": Family(
        "gemma3n_text",
        GEMMA3N
        | {"altup_num_inputs": 2, "altup_correct_scale": False, "activation_sparsity_pattern": [0.0] * 5}
        | {"num_kv_shared_layers": 0, "intermediate_size": 88},
    ),
    "vaultgemma": Family("vaultgemma", ODD | {"head_dim": 16, "sliding_window": 21, "query_pre_attn_scalar": 20}),
    "phimoe": Family(
        "phimoe", SIZES | {"num_local_experts": 5, "attention_bias": True, "lm_head_bias": True, "head_dim": 12}
    ),
    "phimoe-near": Family("phimoe", ODD | {"num_local_experts": 6, "router_jitter_noise": 0.45}),
    "apertus": Family("apertus", ODD | {"attention_bias": True}),
    "nemotron_h": Family(
        "nemotron_h",
        SIZES
        | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"], "n_routed_experts": 6}
        | {"moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40, "num_experts_per_tok": 3}
        | {"mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 16, "n_group": 3}
        | {"topk_group": 2, "routed_scaling_factor": 2.5},
    ),
    "codegen": Family("codegen", GPT | {"n_embd": 48, "n_head": 4, "rotary_dim": 6}),
    "persimmon": Family("persimmon", ODD | {"hidden_size": 72, "num_key_value_heads": 6}),
    "phi-norms": Family("phi", SIZES | {"num_key_value_heads": 5, "head_dim": 12, "qk_layernorm": True}),
    "xglm": Family(
        "xglm",
        {"vocab_size": VOCAB, "d_model": 60, "ffn_dim": 88, "num_layers": 3, "attention_heads": 5}
        | {"max_position_embeddings": POSITIONS},
    ),
    "biogpt": Family("biogpt", ODD | {"num_key_value_heads": 6}),
    "baichuan": Family("llama", ODD | {"num_key_value_heads": 6}, baichuan),
    "baichuan-13b": Family("llama", ODD | {"num_key_value_heads": 6}, baichuan_13b, slopes_instead_of_rotation),
}


def random_model(family: Family) -> Any:
    """transformers' model with random values, none of which is neutral."""
    config = transformers.AutoConfig.for_model(family.model_type, **family.options)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=family.attention).eval()
    with torch.no_grad():
        for name, values in model.state_dict().items():
            is_gain = values.dim() == 1 and name.endswith(("weight", "scalar", "scale"))
            values.copy_(is_gain + torch.randn_like(values) * (0.2 if values.dim() < 2 else values.shape[-1] ** -0.5))
            if family.model_type in ("gemma3n_text", "gemma4_text") and name.endswith("q_norm.weight"):
                values.mul_(0.25)  # scores have no other scale
    return model


@dataclass(frozen=True)
class Made:
    """A checkpoint, and transformers' logits."""

    directory: Path
    logits: np.ndarray


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Family -> its checkpoint."""

    @cache
    def make(name: str) -> Made:
        family, directory = FAMILIES[name], tmp_path_factory.mktemp(name)
        model = random_model(family)
        model.save_pretrained(directory)
        if family.turn is not None:
            from safetensors.torch import load_file, save_file

            config, tensors = json.loads((directory / "config.json").read_text()), directory / "model.safetensors"
            config, values = family.turn(config, load_file(tensors))
            (directory / "config.json").write_text(json.dumps(config))
            save_file(values, tensors)
        with torch.inference_mode():
            return Made(
                directory, model(torch.tensor([TOKENS]), **({"use_cache": False} | family.inputs())).logits[0].numpy()
            )

    return make


@contextmanager
def engine(directory: Path, kernels: str, size: int, quantization: Quantization | None = None) -> Iterator[Any]:
    found = load_engine(
        EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=size,
            dtype="bfloat16" if quantization else "float32",
            max_model_len=192,
            max_num_seqs=2,
            max_num_batched_tokens=64,
            max_num_queued_reqs=2,
            block_size=32,
            enable_prefix_caching=False,
            device_memory_utilization=0.9,
            num_blocks_override=48,
            cpu_threads=2,
            kernel_cache_dir=kernels,
            quantization=quantization,
        ),
        lambda _: None,
    )
    try:
        yield found
    finally:
        found.runner.close()


CASES = [(name, size) for name in FAMILIES for size in (1, 2, 4)]
OFTEN = [(name, 1) for name in FAMILIES] + [(name, (2, 4)[i % 2]) for i, name in enumerate(FAMILIES) if i % 3 == 0]


@pytest.mark.parametrize(("name", "size"), representative(CASES, *OFTEN))
def test_float32_logits_are_those_of_transformers(
    made: Callable[[str], Made], kernel_cache: str, name: str, size: int
) -> None:
    model = made(name)
    with engine(model.directory, kernel_cache, size) as found:
        got = found.runner.logits(TOKENS)
    assert np.abs(got - model.logits).max() <= FLOAT32_TOLERANCE * np.abs(model.logits).max()


@pytest.mark.parametrize("name", representative(tuple(FAMILIES), *list(FAMILIES)[::7]))
def test_logits_of_8_bit_weights_are_near(made: Callable[[str], Made], kernel_cache: str, name: str) -> None:
    model = made(name)
    with engine(model.directory, kernel_cache, 2, "int8") as found:
        got = found.runner.logits(TOKENS)
    errors = np.abs(got - model.logits).mean(1)  # [tokens]
    # Rounding turns a choice of this router in every fifth token, in transformers too.
    error = np.median(errors) if name.startswith("phimoe") else errors.mean()
    assert error <= (MEDIAN_TOLERANCE if name.startswith("phimoe") else INT8_TOLERANCE) * np.abs(model.logits).mean()


REFUSED = [
    ("StableLmForCausalLM", {"qk_layernorm": True}, "qk_layernorm is True: norms of heads in a tensor for each"),
    ("OlmoForCausalLM", {"clip_qkv": 8.0}, "clip_qkv is 8.0: not supported"),
    ("MiniCPMForCausalLM", {"num_experts": 8}, "num_experts is 8: experts of this family"),
    ("MiniCPMForCausalLM", {"sparse_config": {"topk": 64}}, "sparse_config is"),
    ("ArceeForCausalLM", {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    ("CwmForCausalLM", {"mlp_bias": True}, "mlp_bias is True: not supported"),
    ("GlmForCausalLM", {"mlp_bias": True}, "mlp_bias is True: not supported"),
    ("HunYuanMoEV1ForCausalLM", {"num_experts": [4] * 31 + [8]}, "layers of different sizes are not supported"),
    ("GPTJForCausalLM", {"rotary_dim": 300}, "rotary_dim is 300: more than the elements of a head"),
    ("GPTNeoForCausalLM", {"num_layers": 3}, "must name 3 layers"),
    ("FalconForCausalLM", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn is False"),
    ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "not supported"),
    ("MptForCausalLM", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln is True"),
    ("MptForCausalLM", {"attn_config": {"clip_qkv": 6}}, "attn_config.clip_qkv is 6"),
    ("BaichuanForCausalLM", {"vocab_size": 125_696}, "Baichuan 2's output layer"),
    ("SeedOssForCausalLM", {"auto_map": {"AutoModel": "x"}}, "auto_map is set"),
]


@pytest.mark.parametrize(("architecture", "options", "reason"), REFUSED)
def test_options_that_would_change_the_result_are_refused(architecture: str, options: Config, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model_spec_of({"architectures": [architecture]} | options)
    assert reason in str(refused.value)
