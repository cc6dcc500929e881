"""config.json -> ModelSpec: what each architecture means by each key, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from server.checkpoint.model_config import MAX_CONFIG_BYTES, read_model_spec
from server.errors import CheckpointError
from server.models.families import FAMILIES
from server.models.spec import ModelSpec, RopeSpec

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma3ForCausalLM": "gemma3_text",
}


def spec_of(directory: Path, *without: str, **changes: Any) -> ModelSpec:
    config = {key: value for key, value in (SMALL | changes).items() if key not in without}
    (directory / "config.json").write_text(json.dumps(config))
    return read_model_spec(directory)


def refusal(directory: Path, *without: str, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        spec_of(directory, *without, **changes)
    assert caught.value.file == str(directory / "config.json")
    return caught.value.reason


def test_dimensions_are_read(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, rms_norm_eps=1e-5, tie_word_embeddings=True)
    assert spec == ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=4,
        hidden_size=64,
        intermediate_size=96,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=128,
        max_position=256,
        rms_norm_eps=1e-5,
        is_tied=True,
    )


@pytest.mark.parametrize("architecture", FAMILIES)
def test_missing_keys_mean_what_they_mean_to_transformers(tmp_path: Path, architecture: str) -> None:
    theirs = AutoConfig.for_model(MODEL_TYPES[architecture])
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    ours = read_model_spec(tmp_path)
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.hidden_size == theirs.hidden_size
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.num_heads == theirs.num_attention_heads
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.is_tied == theirs.tie_word_embeddings
    types = getattr(theirs, "layer_types", None) or ["full_attention"] * theirs.num_hidden_layers
    if architecture == "MistralForCausalLM":
        types = ["sliding_attention"] * theirs.num_hidden_layers
    for layer, name in enumerate(types):
        rope = theirs.rope_parameters.get(name, theirs.rope_parameters)
        assert ours.layer_rope(layer) == RopeSpec(rope["rope_theta"])
        assert ours.window(layer) == (theirs.sliding_window if name == "sliding_attention" else 0)


def test_null_kv_heads_are_as_many_as_query_heads(tmp_path: Path) -> None:
    for architecture in FAMILIES:
        assert spec_of(tmp_path, architectures=[architecture], num_key_value_heads=None).num_kv_heads == 8
    assert spec_of(tmp_path, "num_key_value_heads").num_kv_heads == 8
    assert spec_of(tmp_path, "num_key_value_heads", architectures=["MistralForCausalLM"]).num_kv_heads == 8


def test_head_dim_is_independent_of_hidden_size_when_given(tmp_path: Path) -> None:
    assert spec_of(tmp_path, head_dim=32).head_dim == 32
    assert spec_of(tmp_path, head_dim=None).head_dim == 8
    assert spec_of(tmp_path, architectures=["Qwen3ForCausalLM"]).head_dim == 128


@pytest.mark.parametrize(
    ("architecture", "attention_bias", "qkv", "o", "qk_norm"),
    [
        ("LlamaForCausalLM", False, False, False, False),
        ("LlamaForCausalLM", True, True, True, False),
        ("MistralForCausalLM", False, False, False, False),
        ("Qwen2ForCausalLM", False, True, False, False),
        ("Qwen2ForCausalLM", True, True, False, False),
        ("Qwen3ForCausalLM", False, False, False, True),
        ("Qwen3ForCausalLM", True, True, True, True),
    ],
)
def test_biases_and_norms_follow_the_architecture(
    tmp_path: Path, architecture: str, attention_bias: bool, qkv: bool, o: bool, qk_norm: bool
) -> None:
    spec = spec_of(tmp_path, architectures=[architecture], attention_bias=attention_bias)
    assert (spec.has_qkv_bias, spec.has_o_bias, spec.has_qk_norm) == (qkv, o, qk_norm)


class TestWindows:
    def test_mistral_slides_on_every_layer(self, tmp_path: Path) -> None:
        assert spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=9).windows == (9, 9, 9, 9)

    def test_mistral_with_null_window_never_slides(self, tmp_path: Path) -> None:
        assert spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None).windows == ()

    def test_llama_has_no_window(self, tmp_path: Path) -> None:
        assert spec_of(tmp_path, sliding_window=9).windows == ()

    @pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
    def test_qwen_slides_from_max_window_layers_on_when_told_to(self, tmp_path: Path, architecture: str) -> None:
        window = {"architectures": [architecture], "sliding_window": 9, "max_window_layers": 3}
        assert spec_of(tmp_path, **window, use_sliding_window=True).windows == (0, 0, 0, 9)
        assert spec_of(tmp_path, **window, use_sliding_window=False).windows == ()
        assert spec_of(tmp_path, **window).windows == ()
        assert spec_of(tmp_path, **(window | {"max_window_layers": 4}), use_sliding_window=True).windows == ()

    def test_layer_types_win_over_max_window_layers(self, tmp_path: Path) -> None:
        types = ["sliding_attention", "full_attention"] * 2
        qwen = {"architectures": ["Qwen2ForCausalLM"], "layer_types": types, "sliding_window": 9}
        assert spec_of(tmp_path, **qwen, use_sliding_window=True, max_window_layers=0).windows == (9, 0, 9, 0)

    @pytest.mark.parametrize(
        "types", [["full_attention"], ["full_attention"] * 3 + ["mamba"], "full_attention", [0] * 4]
    )
    def test_layer_types_that_make_no_sense_are_refused(self, tmp_path: Path, types: Any) -> None:
        assert "layer_types" in refusal(tmp_path, architectures=["Qwen3ForCausalLM"], layer_types=types)

    def test_sliding_layers_with_sliding_switched_off_are_refused(self, tmp_path: Path) -> None:
        types = ["sliding_attention"] * 4
        assert "use_sliding_window" in refusal(tmp_path, architectures=["Qwen3ForCausalLM"], layer_types=types)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


class TestRope:
    def rope(self, directory: Path, **changes: Any) -> RopeSpec:
        return spec_of(directory, **changes).rope

    def test_old_and_new_spellings_mean_the_same(self, tmp_path: Path) -> None:
        for kind, values in (
            ("llama3", LLAMA3),
            ("yarn", YARN),
            ("linear", {"factor": 2.0}),
            ("default", {}),
        ):
            new = self.rope(tmp_path, rope_parameters={"rope_type": kind, "rope_theta": 5e5} | values)
            assert new == self.rope(tmp_path, rope_theta=5e5, rope_scaling={"rope_type": kind} | values)
            assert new == self.rope(tmp_path, rope_theta=5e5, rope_scaling={"type": kind} | values)
            assert (new.kind, new.theta) == (kind, 5e5)

    def test_theta_alone_and_nothing_at_all(self, tmp_path: Path) -> None:
        assert self.rope(tmp_path, rope_theta=1e6, rope_scaling=None) == RopeSpec(theta=1e6)
        assert self.rope(tmp_path) == RopeSpec(theta=10_000.0)

    def test_linear(self, tmp_path: Path) -> None:
        assert self.rope(tmp_path, rope_scaling={"type": "linear", "factor": 2}) == RopeSpec(kind="linear", factor=2.0)

    def test_llama3(self, tmp_path: Path) -> None:
        assert self.rope(tmp_path, rope_scaling={"rope_type": "llama3"} | LLAMA3) == RopeSpec(
            kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64
        )

    def test_yarn_attention_factor_defaults_to_the_papers(self, tmp_path: Path) -> None:
        rope = self.rope(tmp_path, rope_scaling={"type": "yarn"} | YARN)
        assert rope.attention_factor == pytest.approx(0.1 * math.log(4.0) + 1.0)
        assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, True)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"attention_factor": 0.7}, 0.7),
            ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
            ({"mscale": 0.707, "mscale_all_dim": 1.0}, (0.0707 * math.log(4) + 1) / (0.1 * math.log(4) + 1)),
            ({"mscale": 0.707}, 0.1 * math.log(4) + 1),
            ({"mscale": 0.707, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
            ({"factor": 1.0}, 1.0),
            ({"factor": None}, 0.1 * math.log(256 / 64) + 1),
        ],
    )
    def test_yarn_attention_factor(self, tmp_path: Path, options: dict[str, Any], expected: float) -> None:
        rope = self.rope(tmp_path, rope_scaling={"type": "yarn"} | YARN | options)
        assert rope.attention_factor == pytest.approx(expected)

    def test_yarn_options_are_read(self, tmp_path: Path) -> None:
        options = {"beta_fast": 16, "beta_slow": 2, "truncate": False}
        rope = self.rope(tmp_path, rope_scaling={"type": "yarn"} | YARN | options)
        assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (16.0, 2.0, False)

    def test_original_context_falls_back_to_the_context(self, tmp_path: Path) -> None:
        rope = self.rope(tmp_path, rope_scaling={"type": "yarn", "factor": 4.0})
        assert rope.original_max_position == 256

    @pytest.mark.parametrize(
        ("rope", "named"),
        [
            ({"type": "dynamic", "factor": 2.0}, "'dynamic'"),
            ({"rope_type": "longrope", "short_factor": [1.0]}, "'longrope'"),
            ({"type": ["yarn"]}, "yarn"),
            ({"type": "linear"}, "factor is missing"),
            ({"type": "linear", "factor": 0.5}, "0.5"),
            ({"type": "linear", "factor": "2"}, "'2'"),
            ({"type": "yarn", "original_max_position_embeddings": 64}, "factor is missing"),
            ({"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}, "beta_slow"),
            ({"type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate"),
            ({"type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor is missing"),
            ({"type": "llama3", "factor": 8.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0}, "high_freq_factor"),
            ({"type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ({"full_attention": {"rope_type": "default"}}, "full_attention"),
            ("yarn", "must be an object"),
        ],
    )
    def test_what_cannot_be_computed_is_refused_by_name(self, tmp_path: Path, rope: Any, named: str) -> None:
        assert named in refusal(tmp_path, rope_scaling=rope)

    def test_partial_rotary_beside_the_rope_object_is_refused(self, tmp_path: Path) -> None:
        assert "partial_rotary_factor" in refusal(tmp_path, partial_rotary_factor=0.5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "'GPT2LMHeadModel' is not supported; supported are LlamaForCausalLM, Mi",
        ),
        ({"architectures": []}, "architectures is missing"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is missing"),
        ({"architectures": [["LlamaForCausalLM"]]}, "is not supported"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method is 'awq'"),
        ({"quantization_config": ["awq"]}, "quantization_config is ['awq']: expected `object`"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': expected 'silu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias"),
        ({"hidden_size": 0}, "hidden_size is 0: expected `int` >= 1"),
        ({"hidden_size": -64}, "-64"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0: expected `int`"),
        ({"hidden_size": True}, "hidden_size is True: expected `int`"),
        ({"hidden_size": "64"}, "hidden_size is '64': expected `int`"),
        ({"hidden_size": 65}, "hidden_size is 65: not a multiple of num_attention_heads, 8"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000: expected `int` <= 1024"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 8: not a multiple of num_key_value_heads, which is 3"),
        ({"num_key_value_heads": 16}, "16"),
        ({"head_dim": 9}, "head_dim is 9: odd"),
        ({"head_dim": 6}, "head_dim is 6: expected `int` >= 8"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {"full_attention": True}},
            "rope_parameters.full_attention is True: must be an object",
        ),
        ({"hidden_size": 32}, "hidden_size is 32: less than 8 for each of 8 heads"),
        ({"vocab_size": 10**400}, "an integer of over 77 digits"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes': expected `bool`"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window"),
    ],
)
def test_what_would_be_computed_wrong_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    assert named in refusal(tmp_path, **changes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "expected `object`, got `array`"),
        (b"\xff\xfe{", "is not JSON"),
        (b'{"hidden_size": NaN}', "is not JSON: NaN"),
        (b'{"hidden_size": 1, "hidden_size": 2}', "'hidden_size' appears twice"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b'{"a": ' + b"[" * 100_000, "nested too deep"),
        (b" " * (MAX_CONFIG_BYTES + 1), "larger than the"),
    ],
)
def test_files_that_are_no_config_are_refused(tmp_path: Path, text: bytes, named: str) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=named):
        read_model_spec(tmp_path)


def test_missing_and_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        read_model_spec(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        read_model_spec(tmp_path)


WORDS = st.sampled_from(["", "yarn", "type", "rope_type", "factor", "full_attention", "sliding_attention", "\x00é"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
KEYS = [*SMALL, "head_dim", "rope_scaling", "rope_parameters", "rope_theta", "sliding_window", "layer_types"]


@given(
    changes=st.dictionaries(st.sampled_from([*KEYS, "use_sliding_window", "rms_norm_eps"]), JSON, max_size=3),
    architecture=st.sampled_from(list(FAMILIES)),
)
def test_any_values_give_a_sane_spec_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], architecture: str
) -> None:
    directory = tmp_path_factory.mktemp("fuzz")
    try:
        spec = spec_of(directory, **({"architectures": [architecture]} | changes))
    except CheckpointError:
        return
    assert spec.num_heads % spec.num_kv_heads == 0
    assert spec.head_dim % 2 == 0
    assert min(spec.num_layers, spec.hidden_size, spec.intermediate_size, spec.vocab_size, spec.max_position) >= 1
    assert len(spec.windows) in (0, spec.num_layers)
