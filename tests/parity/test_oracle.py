"""The reference is what we think it is: it gives the golden logits, has the tensors and options that we read, and its
logits on the golden inputs move well beyond the tolerance when any option of the model is read wrongly.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.checkpoint.safetensors_file import SafetensorsFile
from neuronserve.server.engine.rope_tables import inverse_frequencies
from neuronserve.server.models.layer import AttentionSpec
from neuronserve.server.models.tensors import tensor_shapes
from tools.golden import __main__ as command
from tools.golden.golden_file import golden_path, load_golden
from tools.golden.oracle import Oracle
from tools.golden.sequences import token_sequences
from tools.random_checkpoint.shapes import SHAPES, TINY

TOLERANCE = 1e-5  # of the largest logit: what the engine is allowed in float32


@pytest.mark.slow
@pytest.mark.parametrize("shape", TINY)
def test_transformers_still_gives_the_golden_logits(oracle_of: Callable[[str], Oracle], shape: str) -> None:
    golden = load_golden(golden_path(shape))
    for sequence, expected in zip(golden.sequences, golden.logits, strict=True):
        got = oracle_of(shape).logits(sequence.token_ids)[list(sequence.positions)]
        assert np.abs(got - expected).max() <= TOLERANCE / 2 * np.abs(expected).max()


@pytest.mark.parametrize("shape", TINY)
def test_tensor_names_and_shapes_are_those_of_transformers(
    checkpoint_of: Callable[[str], Path], oracle_of: Callable[[str], Oracle], tmp_path: Path, shape: str
) -> None:
    spec = read_model_spec(checkpoint_of(shape))
    if spec.experts is None and spec.names.prefix != "backbone.":  # a name of files alone
        assert tensor_shapes(spec) == oracle_of(shape).tensor_shapes()
        return
    oracle_of(shape).model.save_pretrained(tmp_path)  # in memory all have the experts of a layer in one tensor
    files = [SafetensorsFile(directory / "model.safetensors") for directory in (checkpoint_of(shape), tmp_path)]
    ours, theirs = ({name: info.shape for name, info in file.tensors.items()} for file in files)
    assert ours == theirs


@pytest.mark.parametrize("shape", TINY)
def test_a_file_that_transformers_writes_describes_the_same_model(
    checkpoint_of: Callable[[str], Path], oracle_of: Callable[[str], Oracle], tmp_path: Path, shape: str
) -> None:
    oracle_of(shape).config.save_pretrained(tmp_path)
    assert read_model_spec(tmp_path) == read_model_spec(checkpoint_of(shape))


@pytest.mark.parametrize("shape", TINY)
def test_windows_are_those_of_transformers(oracle_of: Callable[[str], Oracle], checkpoint_of: Any, shape: str) -> None:
    spec, config = read_model_spec(checkpoint_of(shape)), oracle_of(shape).config
    keys = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
    one = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    types = getattr(config, "layer_types", None) or [one] * spec.num_layers
    theirs = [getattr(config, keys[name]) if name in keys else 0 for name in types]
    assert [mixer.window for mixer in spec.attention_layers] == [
        window for window, layer in zip(theirs, spec.layers, strict=True) if isinstance(layer.mixer, AttentionSpec)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention_factor": 0.8},
        {"mscale": 0.707, "mscale_all_dim": 1.0},
        {"mscale": 0.707},
        {"mscale": 1.0, "mscale_all_dim": 0.0},
        {"factor": 1.0},
        {"beta_fast": 0, "beta_slow": 0},
    ],
)
def test_yarn_attention_factor_is_that_of_transformers(tmp_path: Path, options: dict[str, Any]) -> None:
    config = SHAPES["tiny-llama-yarn"].config("float32")
    config["rope_parameters"] = config["rope_parameters"] | options
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, theirs = ROPE_INIT_FUNCTIONS["yarn"](AutoConfig.from_pretrained(tmp_path))
    rope = read_model_spec(tmp_path).attention.rope
    assert rope is not None
    assert rope.attention_factor == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (1.0, 1.0)])  # of Llama 3, and of Llama 4 Scout
def test_llama3_frequencies_are_those_of_transformers(tmp_path: Path, low: float, high: float) -> None:
    config = SHAPES["tiny-llama3-rope"].config("float32")
    config["rope_scaling"] = config["rope_scaling"] | {"low_freq_factor": low, "high_freq_factor": high}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(tmp_path))
    spec = read_model_spec(tmp_path)
    rope = spec.attention.rope
    assert rope is not None
    np.testing.assert_allclose(inverse_frequencies(rope, spec.head_dim), theirs.numpy(), rtol=1e-6)


def changed(config: dict[str, Any], key: str, changes: dict[str, Any]) -> dict[str, Any]:
    return config | {key: config[key] | changes}


MISREADINGS: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    ("tiny-llama", lambda c: c | {"rms_norm_eps": 1e-3}),
    ("tiny-llama", lambda c: c | {"rope_theta": 20_000.0}),
    ("tiny-llama-linear", lambda c: changed(c, "rope_scaling", {"factor": 1.0})),
    ("tiny-llama3-rope", lambda c: c | {"rope_scaling": None}),
    ("tiny-llama3-rope", lambda c: changed(c, "rope_scaling", {"high_freq_factor": 8.0})),
    ("tiny-llama3-rope", lambda c: changed(c, "rope_scaling", {"low_freq_factor": 2.0})),
    ("tiny-llama3-rope", lambda c: changed(c, "rope_scaling", {"original_max_position_embeddings": 128})),
    ("tiny-llama-yarn", lambda c: changed(c, "rope_parameters", {"attention_factor": 1.0})),
    ("tiny-llama-yarn", lambda c: changed(c, "rope_parameters", {"truncate": False})),
    ("tiny-llama-yarn", lambda c: changed(c, "rope_parameters", {"beta_fast": 32.0})),
    ("tiny-llama-yarn", lambda c: changed(c, "rope_parameters", {"beta_slow": 1.0})),
    ("tiny-llama-yarn", lambda c: changed(c, "rope_parameters", {"original_max_position_embeddings": 512})),
    ("tiny-mistral", lambda c: c | {"sliding_window": 22}),
    ("tiny-mistral", lambda c: c | {"sliding_window": 20}),
    ("tiny-qwen2", lambda c: c | {"sliding_window": 20}),
    ("tiny-qwen2", lambda c: c | {"max_window_layers": 0}),
    ("tiny-qwen2", lambda c: c | {"max_window_layers": 2}),
    ("tiny-qwen3", lambda c: changed(c, "rope_parameters", {"rope_theta": 1e5})),
    ("tiny-gemma2", lambda c: c | {"sliding_window": 20}),
    ("tiny-gemma2", lambda c: c | {"query_pre_attn_scalar": 32}),
    ("tiny-gemma2", lambda c: c | {"attn_logit_softcapping": None}),
    ("tiny-gemma2", lambda c: c | {"final_logit_softcapping": None}),
    ("tiny-phi3", lambda c: changed(c, "rope_parameters", {"short_factor": [1.0] * 6})),
    ("tiny-phi3", lambda c: changed(c, "rope_parameters", {"attention_factor": 1.0})),
    ("tiny-phi3", lambda c: c | {"sliding_window": 22}),
    ("tiny-phi3-long", lambda c: c | {"original_max_position_embeddings": 512}),
    ("tiny-phi3-long", lambda c: changed(c, "rope_scaling", {"factor": 2.0})),
    ("tiny-granite", lambda c: c | {"embedding_multiplier": 1.0}),
    ("tiny-granite", lambda c: c | {"attention_multiplier": 0.25}),
    ("tiny-granite", lambda c: c | {"residual_multiplier": 1.0}),
    ("tiny-granite", lambda c: c | {"logits_scaling": 1.0}),
    ("tiny-granite-moe", lambda c: c | {"num_experts_per_tok": 2}),
    ("tiny-granite4", lambda c: c | {"position_embedding_type": "nope"}),
    ("tiny-granite4-moe", lambda c: c | {"position_embedding_type": "rope"}),
    ("tiny-granite4-moe", lambda c: c | {"residual_multiplier": 0.3}),
    ("tiny-mixtral", lambda c: c | {"num_experts_per_tok": 1}),
    ("tiny-qwen2-moe", lambda c: c | {"norm_topk_prob": True}),
    ("tiny-qwen3-moe", lambda c: c | {"norm_topk_prob": False}),
    ("tiny-gpt-oss", lambda c: c | {"sliding_window": 20}),
    ("tiny-gpt-oss", lambda c: c | {"swiglu_alpha": 1.0}),
    ("tiny-llama4", lambda c: c | {"attention_chunk_size": 512}),
    ("tiny-olmo3", lambda c: c | {"sliding_window": 20}),
    ("tiny-olmo3", lambda c: c | {"rope_scaling": None}),
    ("tiny-smollm3", lambda c: c | {"no_rope_layers": [1, 1, 1, 0]}),
    ("tiny-ministral", lambda c: c | {"sliding_window": 20}),
    ("tiny-ministral", lambda c: c | {"layer_types": ["sliding_attention"] * 4}),
    ("tiny-ministral3", lambda c: changed(c, "rope_parameters", {"llama_4_scaling_beta": 0.0})),
    ("tiny-llama4-dense", lambda c: c | {"attention_chunk_size": 22}),
    ("tiny-llama4-dense", lambda c: c | {"no_rope_layers": [1, 1, 1, 1]}),
    ("tiny-llama4-dense", lambda c: c | {"use_qk_norm": False}),
    ("tiny-llama4-dense", lambda c: c | {"attn_temperature_tuning": False}),
    ("tiny-llama4-dense", lambda c: c | {"floor_scale": 9}),
    ("tiny-gpt2", lambda c: c | {"layer_norm_epsilon": 1e-3}),
    ("tiny-gpt2", lambda c: c | {"activation_function": "relu"}),
    ("tiny-opt", lambda c: c | {"activation_function": "gelu"}),
    ("tiny-opt-after", lambda c: c | {"num_attention_heads": 8}),
    ("tiny-opt-narrow", lambda c: c | {"activation_function": "gelu"}),
    ("tiny-neox", lambda c: c | {"hidden_act": "relu"}),
    ("tiny-neox", lambda c: c | {"rotary_pct": 0.5}),
    ("tiny-neox", lambda c: c | {"rotary_emb_base": 20_000}),
    ("tiny-neox", lambda c: c | {"use_parallel_residual": False}),
    ("tiny-phi", lambda c: c | {"partial_rotary_factor": 1.0}),
    ("tiny-cohere", lambda c: c | {"layer_norm_eps": 1e-3}),
    ("tiny-cohere", lambda c: c | {"logit_scale": 0.76}),
    ("tiny-cohere", lambda c: c | {"rope_theta": 10_000.0}),
    ("tiny-cohere2", lambda c: c | {"sliding_window": 20}),
    ("tiny-cohere2", lambda c: c | {"sliding_window_pattern": 2}),
]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(MISREADINGS)))
def test_a_misread_option_moves_the_logits_well_beyond_the_tolerance(
    checkpoint_of: Callable[[str], Path], tmp_path: Path, case: int
) -> None:
    shape, misread = MISREADINGS[case]
    shutil.copytree(checkpoint_of(shape), tmp_path / shape)
    config = misread(json.loads((tmp_path / shape / "config.json").read_text()))
    (tmp_path / shape / "config.json").write_text(json.dumps(config))
    longest = token_sequences(config["vocab_size"])[-1]
    got = Oracle(tmp_path / shape).logits(longest.token_ids)[list(longest.positions)]
    expected = load_golden(golden_path(shape)).logits[-1]
    assert np.abs(got - expected).max() > 100 * TOLERANCE * np.abs(expected).max()


@pytest.mark.slow
def test_command_writes_every_golden_file_or_those_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "golden_path", lambda shape: tmp_path / f"{shape}.npz")
    assert command.main(["tiny-odd"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-odd.npz"]
    assert command.main([]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == set(TINY)
    with pytest.raises(SystemExit, match="2"):
        command.main(["tiny-nothing"])
