"""Metadata of GGUF files as config.json: what each architecture's row makes of it, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from neuronserve.server.checkpoint.gguf.architectures import ARCHITECTURES
from neuronserve.server.checkpoint.gguf.config import config_of
from neuronserve.server.checkpoint.gguf.files import open_gguf
from neuronserve.server.engine.rope_tables import inverse_frequencies
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.families import model_spec_of
from neuronserve.server.models.rope import read_rope
from tests.checkpoint.gguf.made import finish

Edit = Callable[[gguf.GGUFWriter], object]
Rows = np.zeros((300, 64), np.float32)


def written(path: Path, architecture: str, *edits: Edit) -> Path:
    """A file with the sizes of a tiny model and its embedding alone."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(4)
    writer.add_feed_forward_length(176)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", Rows)
    for edit in edits:
        edit(writer)
    finish(writer)
    return path


def config(tmp_path: Path, architecture: str, *edits: Edit) -> dict[str, Any]:
    return config_of(open_gguf([written(tmp_path / "m.gguf", architecture, *edits)]))


def tensor(name: str, values: np.ndarray) -> Edit:
    return lambda writer: writer.add_tensor(name, values.astype(np.float32))


def factors(values: np.ndarray) -> dict[str, Any]:
    """Return rope_scaling of a file with factors of frequencies, whatever they follow from."""
    stated = [float(str(value)) for value in values.astype(np.float32)]
    return {"rope_type": "longrope", "attention_factor": 1.0, "short_factor": stated, "long_factor": stated}


def llama3_factors(theta: float, width: int, factor: float) -> np.ndarray:
    """Return the factors by wave lengths, as conversion writes them."""
    found = []
    for i in range(0, width, 2):
        wave = 2 * math.pi * theta ** (i / width)
        smooth = (8192 / wave - 1) / 3
        found.append(1.0 if wave < 2048 else factor if wave > 8192 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(found)


def llama4_factors(theta: float, width: int, factor: float) -> np.ndarray:
    waves = 2 * math.pi * theta ** (np.arange(0, width, 2) / width)
    return np.where(waves < 8192, 1.0, factor)


def base(theta: float) -> Edit:
    return lambda writer: writer.add_rope_freq_base(theta)


CASES: list[tuple[str, str, tuple[Edit, ...], dict[str, Any]]] = [
    ("llama", "llama", (), {"architectures": ["LlamaForCausalLM"], "head_dim": 16, "rms_norm_eps": 1e-5}),
    ("tied", "llama", (), {"tie_word_embeddings": True, "vocab_size": 300}),
    ("untied", "llama", (tensor("output.weight", Rows),), {"tie_word_embeddings": False}),
    ("biases", "llama", (tensor("blk.0.attn_q.bias", np.zeros(64)),), {"attention_bias": True}),
    (
        "llama3",
        "llama",
        (base(5e5), tensor("rope_freqs.weight", llama3_factors(5e5, 16, 8.0))),
        {"rope_scaling": factors(llama3_factors(5e5, 16, 8.0)), "rope_theta": 5e5},
    ),
    ("factors of one", "llama", (tensor("rope_freqs.weight", np.ones(8)),), {"rope_scaling": None}),
    (
        "mixtral",
        "llama",
        (lambda writer: writer.add_expert_count(8), lambda writer: writer.add_expert_used_count(2)),
        {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    (
        "longrope",
        "phi3",
        (
            lambda writer: writer.add_rope_scaling_orig_ctx_len(128),
            tensor("rope_factors_long.weight", np.full(8, 2.0)),
            tensor("rope_factors_short.weight", np.full(8, 1.0)),
        ),
        {
            "rope_scaling": {"rope_type": "longrope", "long_factor": [2.0] * 8, "short_factor": [1.0] * 8},
            "original_max_position_embeddings": 128,
        },
    ),
    ("no window", "phi3", (lambda writer: writer.add_sliding_window(0),), {"sliding_window": None}),
    ("partial", "phi3", (lambda writer: writer.add_rope_dimension_count(12),), {"partial_rotary_factor": 0.75}),
    (
        "granite",
        "granite",
        (
            lambda writer: writer.add_attention_scale(0.015625),
            lambda writer: writer.add_embedding_scale(12.0),
            lambda writer: writer.add_residual_scale(0.22),
            lambda writer: writer.add_logit_scale(8.0),
        ),
        {
            "attention_multiplier": 0.015625,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 8.0,
        },
    ),
    (
        "gemma2",
        "gemma2",
        (lambda writer: writer.add_attn_logit_softcapping(50.0), lambda writer: writer.add_sliding_window(4096)),
        {"attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16, "hidden_activation": "gelu_pytorch_tanh"},
    ),
    ("gemma3", "gemma3", (lambda writer: writer.add_key_length(32),), {"head_dim": 32, "query_pre_attn_scalar": 32}),
    (
        "olmo3",
        "olmo2",
        (
            lambda writer: writer.add_sliding_window(64),
            lambda writer: writer.add_sliding_window_pattern([True, True, True, False]),
        ),
        {"architectures": ["Olmo3ForCausalLM"], "layer_types": [*["sliding_attention"] * 3, "full_attention"]},
    ),
    (
        "llama 4",
        "llama4",
        (
            lambda writer: writer.add_expert_count(16),
            lambda writer: writer.add_expert_feed_forward_length(72),
            lambda writer: writer.add_interleave_moe_layer_step(1),
            base(5e5),
            tensor("rope_freqs.weight", llama4_factors(5e5, 16, 16.0)),
        ),
        {
            "intermediate_size": 72,
            "intermediate_size_mlp": 176,
            "use_qk_norm": True,
            "rope_scaling": factors(llama4_factors(5e5, 16, 16.0)),
        },
    ),
    ("maverick", "llama4", (lambda writer: writer.add_expert_count(128),), {"use_qk_norm": False}),
    (
        "llama 4 without chunks",
        "llama4",
        (lambda writer: writer.add_sliding_window(0),),
        {"layer_types": ["full_attention"] * 4, "no_rope_layers": [1] * 4},
    ),
    (
        "neox",
        "gptneox",
        (
            lambda writer: writer.add_rope_dimension_count(4),
            lambda writer: writer.add_parallel_residual(False),
            tensor("blk.0.attn_qkv.bias", np.zeros(192)),
        ),
        {"rotary_pct": 0.25, "use_parallel_residual": False, "attention_bias": True},
    ),
    ("whole heads", "phi2", (), {"partial_rotary_factor": 1.0}),
    ("olmo2", "olmo2", (), {"architectures": ["Olmo2ForCausalLM"]}),
    ("per layer", "qwen3", (lambda writer: writer.add_array("x", [1]),), {"num_key_value_heads": 2}),
]


@pytest.mark.parametrize(("architecture", "edits", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_metadata_as_the_values_of_config_json(
    tmp_path: Path, architecture: str, edits: tuple[Edit, ...], expected: dict[str, Any]
) -> None:
    found = config(tmp_path, architecture, *edits)
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_row_names_an_architecture_that_the_package_can_name_tensors_of(architecture: str) -> None:
    assert architecture in gguf.MODEL_ARCH_NAMES.values()


REFUSED: list[tuple[str, tuple[Edit, ...], str]] = [
    ("mamba", (), "general.architecture is 'mamba': read are llama, "),
    ("llama", (lambda writer: writer.add_value_length(8),), "attention.value_length is 8"),
    ("qwen2", (lambda writer: writer.add_float32("qwen2.rope.freq_base", math.nan),), "freq_base is nan"),
    ("qwen2", (lambda writer: writer.add_string("qwen2.rope.freq_base", "x"),), "freq_base is 'x'"),
    ("olmo2", (lambda writer: writer.add_sliding_window_pattern([True]),), "one value for each of 4 layers"),
    (
        "qwen2",
        (lambda writer: writer.add_array("qwen2.expert_count", [1, 2]),),
        "layers that differ in it are not supported",
    ),
]


@pytest.mark.parametrize(("architecture", "edits", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_no_config_can_state_is_refused(
    tmp_path: Path, architecture: str, edits: tuple[Edit, ...], message: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        config(tmp_path, architecture, *edits)
    assert message in str(caught.value)


def test_factors_are_those_of_llama_3(tmp_path: Path) -> None:
    stated = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    expected = read_rope({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **stated}}, 16_384)
    found = read_rope(
        config(tmp_path, "llama", base(5e5), tensor("rope_freqs.weight", llama3_factors(5e5, 64, 8.0))), 16_384
    )
    for length in (100, 16_384):
        np.testing.assert_allclose(inverse_frequencies(found, 64, length), inverse_frequencies(expected, 64), rtol=1e-6)


def test_factors_of_other_pairs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must have a number for each of 8 pairs"):
        model_spec_of(config(tmp_path, "llama", tensor("rope_freqs.weight", np.full(9, 2.0))))


def test_a_file_without_an_embedding_is_no_language_model(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("a.weight", Rows)
    finish(writer)
    with pytest.raises(CheckpointError, match=r"token_embd.weight: missing"):
        config_of(open_gguf([tmp_path / "m.gguf"]))
