"""config.json -> ModelSpec: what each architecture means by each key, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from neuronserve.server.checkpoint.model_config import MAX_CONFIG_BYTES, read_model_spec
from neuronserve.server.config import AttentionSpan
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.families import FAMILIES, own_keys
from neuronserve.server.models.families.deepseek import LatentConfig
from neuronserve.server.models.families.hybrid import HybridConfig
from neuronserve.server.models.layer import (
    AttentionSpec,
    ExpertsSpec,
    LatentAttentionSpec,
    NetworkSpec,
    RopeSpec,
    TemperatureSpec,
)
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import HeadSpec, ModelSpec, NormSpec
from neuronserve.server.models.tensors import tensor_shapes
from tests.model_specs import experts_of, network_of, windows_of, with_attention, with_stack
from tools.random_checkpoint.shapes import MODEL_TYPES

NONE = (0, 0, 0, 0)  # windows of four layers that attend to everything

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


def spec_of(directory: Path, *without: str, **changes: Any) -> ModelSpec:
    config = {key: value for key, value in (SMALL | changes).items() if key not in without}
    (directory / "config.json").write_text(json.dumps(config))
    return read_model_spec(directory)


def ropes_of(spec: ModelSpec) -> list[RopeSpec | None]:
    return [layer.mixer.rope for layer in spec.layers]


def refusal(directory: Path, *without: str, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        spec_of(directory, *without, **changes)
    assert caught.value.file == str(directory / "config.json")
    return caught.value.reason


def layers_of(architecture: str, count: int) -> dict[str, Any]:
    """`layer_types` of the one family that by default has state-space layers."""
    return {"layer_types": ["attention"] * count} if architecture.startswith("GraniteMoeHybrid") else {}


def test_dimensions_are_read(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, rms_norm_eps=1e-5, tie_word_embeddings=True)
    sizes = DecoderSizes(
        num_layers=4,
        hidden_size=64,
        intermediate_size=96,
        num_heads=8,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=128,
    )
    expected = with_stack(sizes.spec("LlamaForCausalLM", 256, is_tied=True), norm=NormSpec(eps=1e-5))
    assert spec == with_attention(expected, rope=RopeSpec())


# Their tests in tests/parity read files that state these keys. Without them, transformers has no class (remote code),
# no key or another name for a size, or a value that is refused; the last two do not rotate layers without a window.
STATED = ("InternLM2", "MiniCPM", "Baichuan", "Bloom", "Mpt", "GPTJ", "Falcon", "Lfm2", "Bamba", "NemotronH", "Gemma4")
STATED += ("Glm4Moe", "Exaone4", "ExaoneMoe", "Gemma3n", "BioGpt", "CodeGen", "DebertaV2")
SKIPPED = LatentConfig, HybridConfig


@pytest.mark.parametrize(
    "architecture", [name for name in MODEL_TYPES if name.removesuffix("ForCausalLM") not in STATED]
)
def test_missing_keys_mean_what_they_mean_to_transformers(tmp_path: Path, architecture: str) -> None:
    theirs, keys = AutoConfig.for_model(MODEL_TYPES[architecture]), own_keys(architecture)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], **layers_of(architecture, 32)}))
    ours = read_model_spec(tmp_path)
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.hidden_size == theirs.hidden_size
    width = "moe_intermediate_size" if hasattr(theirs, "moe_intermediate_size") else "intermediate_size"
    assert network_of(ours, -1).size == (getattr(theirs, keys.get(width, width)) or 4 * ours.hidden_size)
    assert ours.num_heads == theirs.num_attention_heads
    if isinstance(latent := ours.attention, LatentAttentionSpec):
        sizes = latent.rank, latent.rotary, latent.size, latent.value_size, latent.query_rank
        ranks = theirs.kv_lora_rank, theirs.qk_rope_head_dim, theirs.qk_nope_head_dim
        assert sizes == (*ranks, theirs.v_head_dim, theirs.q_lora_rank)
    else:
        assert ours.num_kv_heads == (getattr(theirs, "num_key_value_heads", None) or theirs.num_attention_heads)
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.vocab_size == theirs.vocab_size
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.stack.norm.eps == getattr(theirs, keys.get("rms_norm_eps", "rms_norm_eps"), 1e-5)
    assert ours.is_tied == theirs.tie_word_embeddings
    types = getattr(theirs, "layer_types", None) or ["full_attention"] * theirs.num_hidden_layers
    if architecture == "MistralForCausalLM":
        types = ["sliding_attention"] * theirs.num_hidden_layers
    if ours.stack.input.num_positions or architecture in GRANITE4["architectures"]:
        assert ours.distinct_ropes == (None,)
        return
    first = next(rope for rope in ours.distinct_ropes if rope is not None)
    for layer, name in enumerate(types):
        rope = theirs.rope_parameters.get(name, theirs.rope_parameters)
        partial = rope.get("partial_rotary_factor", 1.0)
        plain = RopeSpec(rope["rope_theta"], partial_factor=partial, is_interleaved=first.is_interleaved)
        if (kind := rope.get("rope_type", rope.get("type", "default"))) != "default":
            assert (first.kind, first.factor) == (kind, rope["factor"])
            plain = replace(first, theta=rope["rope_theta"])
        is_rotated = (getattr(theirs, "no_rope_layers", None) or [1] * ours.num_layers)[layer]
        if architecture == "Cohere2ForCausalLM":
            is_rotated = name == "sliding_attention"
        if not isinstance(mixer := ours.layers[layer].mixer, AttentionSpec):
            continue
        assert mixer.rope == (plain if is_rotated else None)
        window = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}.get(name, "")
        assert windows_of(ours)[layer] == getattr(theirs, window, 0)


def test_null_kv_heads_are_as_many_as_query_heads(tmp_path: Path) -> None:
    for architecture in (
        name
        for name, family in FAMILIES.items()
        if not issubclass(family, SKIPPED)
        and not name.startswith((*STATED, "GPTBigCode", "GPTNeo", "Marian", "MBart", "Bart", "Whisper", "Pegasus"))
    ):
        changes = {"architectures": [architecture], "num_key_value_heads": None, **layers_of(architecture, 4)}
        assert spec_of(tmp_path, **changes).num_kv_heads == 8
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
    attention = spec.attention
    assert (attention.has_qkv_bias, attention.has_o_bias) == (qkv, o)
    assert attention.qk_norm == ("head" if qk_norm else "none")


def test_multipliers_and_caps_are_read(tmp_path: Path) -> None:
    granite = {"embedding_multiplier": 12, "attention_multiplier": 0.0156, "residual_multiplier": 0.22}
    spec = spec_of(tmp_path, architectures=["GraniteForCausalLM"], **granite, logits_scaling=8.0)
    assert (spec.stack.input.scale, spec.attention.scale, spec.layers[3].residual_scale) == (12.0, 0.0156, 0.22)
    assert spec.head == HeadSpec(scale=1 / 8)
    gemma = {"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 144}
    spec = spec_of(tmp_path, **gemma)
    assert (spec.attention.score_cap, spec.attention.scale) == (50.0, 1 / 12)
    assert spec.head == HeadSpec(is_tied=True, cap=30.0)
    assert (windows_of(spec), spec.stack.norm.offset) == ((4096, 0, 4096, 0), 1.0)
    assert spec.layers[0].norms == "before_and_after"
    spec = spec_of(tmp_path, **gemma, attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (spec.attention.score_cap, spec.head) == (0.0, HeadSpec(is_tied=True))


LLAMA4: dict[str, Any] = {"architectures": ["Llama4ForCausalLM"], "moe_layers": [], "intermediate_size_mlp": 80}


class TestLlama4:
    def test_rotated_layers_have_chunks_and_the_others_temperatures(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **LLAMA4, attention_chunk_size=9)
        assert [layer.mixer.span for layer in spec.layers] == [AttentionSpan(9, is_chunked=True)] * 3 + [
            AttentionSpan()
        ]
        assert [rope is None for rope in ropes_of(spec)] == [False, False, False, True]
        assert spec.attention.rope == RopeSpec(5e5, is_interleaved=True)
        assert [layer.mixer.qk_norm for layer in spec.layers] == ["unweighted"] * 3 + ["none"]
        assert spec.temperatures == (TemperatureSpec(0.1, 8192, 1),)
        assert spec_of(tmp_path, **LLAMA4, attn_temperature_tuning=False).temperatures == ()
        assert windows_of(spec_of(tmp_path, **LLAMA4, attention_chunk_size=9, no_rope_layers=[])) == (9, 9, 9, 0)
        assert windows_of(spec_of(tmp_path, **LLAMA4, layer_types=["full_attention"] * 4)) == NONE
        assert "attention_chunk_size" in refusal(tmp_path, **LLAMA4, attention_chunk_size=None)

    def test_layers_without_experts_have_a_width_of_their_own(self, tmp_path: Path) -> None:
        assert [layer.feed_forward for layer in spec_of(tmp_path, **LLAMA4).layers] == [NetworkSpec(80)] * 4
        spec = spec_of(tmp_path, **LLAMA4 | {"moe_layers": [1, 3]})
        network = NetworkSpec(96)
        experts = ExpertsSpec(16, 1, network, shared=network, routing="sigmoid", weighs_inputs=True)
        assert [layer.feed_forward for layer in spec.layers] == [NetworkSpec(80), experts] * 2


class TestWindows:
    def test_mistral_slides_on_every_layer(self, tmp_path: Path) -> None:
        assert windows_of(spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=9)) == (9, 9, 9, 9)

    def test_mistral_with_null_window_never_slides(self, tmp_path: Path) -> None:
        assert windows_of(spec_of(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None)) == NONE

    def test_llama_has_no_window(self, tmp_path: Path) -> None:
        assert windows_of(spec_of(tmp_path, sliding_window=9)) == NONE

    @pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
    def test_qwen_slides_from_max_window_layers_on_when_told_to(self, tmp_path: Path, architecture: str) -> None:
        window = {"architectures": [architecture], "sliding_window": 9, "max_window_layers": 3}
        assert windows_of(spec_of(tmp_path, **window, use_sliding_window=True)) == (0, 0, 0, 9)
        assert windows_of(spec_of(tmp_path, **window, use_sliding_window=False)) == NONE
        assert windows_of(spec_of(tmp_path, **window)) == NONE
        assert windows_of(spec_of(tmp_path, **(window | {"max_window_layers": 4}), use_sliding_window=True)) == NONE

    def test_layer_types_win_over_max_window_layers(self, tmp_path: Path) -> None:
        types = ["sliding_attention", "full_attention"] * 2
        qwen = {"architectures": ["Qwen2ForCausalLM"], "layer_types": types, "sliding_window": 9}
        assert windows_of(spec_of(tmp_path, **qwen, use_sliding_window=True, max_window_layers=0)) == (9, 0, 9, 0)

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
        rope = spec_of(directory, **changes).attention.rope
        assert rope is not None
        return rope

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
            ({"rope_type": "longrope", "short_factor": [1.0]}, "long_factor is missing"),
            (
                {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 4},
                "short_factor is [1.0, 1.0,",
            ),
            ({"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [0.0] * 4}, "long_factor"),
            ({"type": ["yarn"]}, "yarn"),
            ({"type": "linear"}, "factor is missing"),
            ({"type": "linear", "factor": 0.5}, "0.5"),
            ({"type": "linear", "factor": "2"}, "'2'"),
            ({"type": "yarn", "original_max_position_embeddings": 64}, "factor is missing"),
            ({"type": "yarn", "factor": 2.0, "beta_fast": 1, "beta_slow": 2}, "beta_slow"),
            ({"type": "yarn", "factor": 2.0, "truncate": "no"}, "truncate"),
            ({"type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}, "low_freq_factor is missing"),
            ({"type": "llama3", "factor": 8.0, "high_freq_factor": 1.0, "low_freq_factor": 2.0}, "high_freq_factor"),
            ({"type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
            ({"full_attention": {"rope_type": "default"}}, "full_attention"),
            ("yarn", "must be an object"),
        ],
    )
    def test_what_cannot_be_computed_is_refused_by_name(self, tmp_path: Path, rope: Any, named: str) -> None:
        assert named in refusal(tmp_path, rope_scaling=rope)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, math.sqrt(1 + math.log(256 / 64) / math.log(64))),  # by the ratio of the contexts
            ({"factor": 8.0}, math.sqrt(1 + math.log(8) / math.log(64))),
            ({"factor": 1.0}, 1.0),
            ({"attention_factor": 0.9}, 0.9),
        ],
    )
    def test_longrope_has_factors_of_pairs_and_one_of_attention(
        self, tmp_path: Path, options: dict[str, Any], expected: float
    ) -> None:
        values = {"type": "su", "short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [2.0, 3.0, 5.0, 9.0]} | options
        phi = {"architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 64}
        rope = self.rope(tmp_path, **phi, rope_scaling=values)
        assert (rope.kind, rope.original_max_position, rope.partial_factor) == ("longrope", 64, 1.0)
        assert (rope.short_factors, rope.long_factors) == ((1.0, 2.0, 3.0, 4.0), (2.0, 3.0, 5.0, 9.0))
        assert rope.attention_factor == pytest.approx(expected)

    def test_phi_rotates_a_part_of_each_head(self, tmp_path: Path) -> None:
        phi = {"architectures": ["Phi3ForCausalLM"], "hidden_size": 128}
        assert self.rope(tmp_path, **phi, partial_rotary_factor=0.75).rotary_dim(16) == 12
        assert "turns 3 values of 16" in refusal(tmp_path, **phi, partial_rotary_factor=0.2)

    def test_layers_of_smollm3_that_are_not_rotated(self, tmp_path: Path) -> None:
        smol: dict[str, Any] = {"architectures": ["SmolLM3ForCausalLM"]}
        turns = ropes_of(spec_of(tmp_path, **smol, rope_theta=5e4))
        assert turns == [*[RopeSpec(5e4)] * 3, None]
        assert [rope is None for rope in ropes_of(spec_of(tmp_path, **smol, no_rope_layers=[0, 1, 1, 0, 1]))] == [
            1,
            0,
            0,
            1,
        ]
        assert windows_of(spec_of(tmp_path, **smol, use_sliding_window=True, sliding_window=9)) == (0, 0, 0, 9)
        assert windows_of(spec_of(tmp_path, **smol, sliding_window=9)) == NONE
        assert "no_rope_layers" in refusal(tmp_path, **smol, no_rope_layers=[1, 1])
        assert "no_rope_layers[0] is 2" in refusal(tmp_path, **smol, no_rope_layers=[2, 1, 1, 1])

    def test_sliding_layers_of_olmo3_are_not_scaled(self, tmp_path: Path) -> None:
        olmo = {"architectures": ["Olmo3ForCausalLM"], "rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn"} | YARN}
        kinds = [rope.kind for rope in ropes_of(spec_of(tmp_path, **olmo)) if rope is not None]
        assert kinds == ["default", "default", "default", "yarn"]
        assert windows_of(spec_of(tmp_path, **olmo, sliding_window=9)) == (9, 9, 9, 0)

    def test_partial_rotary_beside_the_rope_object_is_refused(self, tmp_path: Path) -> None:
        assert "partial_rotary_factor" in refusal(tmp_path, partial_rotary_factor=0.5)


GPT2, OPT, NEOX, COHERE = (
    {"architectures": [name], "num_key_value_heads": None}
    for name in ("GPT2LMHeadModel", "OPTForCausalLM", "GPTNeoXForCausalLM", "CohereForCausalLM")
)


class TestClassics:
    """GPT-2, OPT and GPT-NeoX: layer norms and biases, with keys and names of their own."""

    def test_own_keys_win_over_llamas(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **GPT2, n_embd=32, n_head=4, n_layer=2, n_inner=None, n_positions=99)
        assert (spec.hidden_size, spec.num_heads, spec.num_layers) == (32, 4, 2)
        table = spec.stack.input
        assert (network_of(spec).size, table.num_positions, table.first_position) == (128, 99, 0)
        assert network_of(spec_of(tmp_path, "intermediate_size", **GPT2, n_inner=None)).size == 256
        assert network_of(spec_of(tmp_path, **OPT, ffn_dim=48)).size == 48

    @pytest.mark.parametrize(
        ("name", "activation"),
        [("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_fast", "gelu_tanh"), ("relu", "relu")],
    )
    def test_activations_are_read_by_name(self, tmp_path: Path, name: str, activation: str) -> None:
        assert network_of(spec_of(tmp_path, **OPT, activation_function=name)).activation == activation
        assert network_of(spec_of(tmp_path, **NEOX, hidden_act=name)).activation == activation

    def test_opt_has_two_rows_of_positions_before_the_first(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **OPT)
        table = spec.stack.input
        assert (table.num_positions, table.first_position, spec.max_position) == (258, 2, 256)
        assert tensor_shapes(spec)["model.decoder.embed_positions.weight"] == (258, 64)

    def test_embeddings_of_opt_may_be_narrower_than_the_stream(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **OPT, word_embed_proj_dim=24)
        shapes = tensor_shapes(spec)
        assert shapes["model.decoder.embed_tokens.weight"] == (128, 24)
        assert shapes["model.decoder.project_in.weight"] == (64, 24)
        assert shapes["model.decoder.project_out.weight"] == (24, 64)
        assert (spec.state_size, spec_of(tmp_path, **OPT, word_embed_proj_dim=64).state_size) == (24, 64)

    @pytest.mark.parametrize("is_before", [True, False])
    def test_norms_of_opt_have_the_same_names_before_and_after(self, tmp_path: Path, is_before: bool) -> None:
        spec = spec_of(tmp_path, **OPT, do_layer_norm_before=is_before)
        norms = {name for name in tensor_shapes(spec) if "layer_norm.weight" in name and ".0." in name}
        at = "model.decoder.layers.0."
        assert norms == {f"{at}self_attn_layer_norm.weight", f"{at}final_layer_norm.weight"}
        assert ("model.decoder.final_layer_norm.weight" in tensor_shapes(spec)) == is_before

    def test_no_key_says_the_epsilon_of_opt(self, tmp_path: Path) -> None:
        assert spec_of(tmp_path, **OPT, layer_norm_eps=1e-3, rms_norm_eps=1e-3).stack.norm.eps == 1e-5

    def test_biases_are_optional_where_a_key_says_so(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **OPT, enable_bias=False)
        assert not any(".bias" in name and "norm" not in name for name in tensor_shapes(spec))
        spec = spec_of(tmp_path, **NEOX, attention_bias=False)
        assert (spec.attention.has_qkv_bias, spec.attention.has_o_bias) == (False, False)
        assert network_of(spec).has_bias

    def test_matrices_of_gpt2_are_stored_transposed_and_fused(self, tmp_path: Path) -> None:
        shapes = tensor_shapes(spec_of(tmp_path, **GPT2))
        assert shapes["transformer.h.3.attn.c_attn.weight"] == (64, 192)
        assert shapes["transformer.h.3.attn.c_attn.bias"] == (192,)
        assert shapes["transformer.h.3.mlp.c_fc.weight"] == (64, 96)
        assert shapes["transformer.h.3.mlp.c_proj.weight"] == (96, 64)

    def test_neox_rotates_a_part_and_may_have_branches_in_turn(self, tmp_path: Path) -> None:
        assert spec_of(tmp_path, **NEOX).attention.rope == RopeSpec(partial_factor=0.25)
        spec = spec_of(tmp_path, **NEOX, rotary_pct=0.5, rotary_emb_base=5e4, use_parallel_residual=False)
        assert (spec.attention.rope, spec.layers[0].norms) == (RopeSpec(5e4, partial_factor=0.5), "before")
        rope = {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 1.0}
        assert spec_of(tmp_path, **NEOX, rope_parameters=rope).attention.rope == RopeSpec(2e4)


class TestCohere:
    """Command-R and Cohere 2."""

    def test_options_of_command_r(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **COHERE, layer_norm_eps=1e-4, logit_scale=0.5, use_qk_norm=True)
        assert (spec.stack.norm, spec.layers[0].norms) == (NormSpec("layer_no_bias", 1e-4), "parallel")
        assert spec.head == HeadSpec(is_tied=True, scale=0.5)
        assert tensor_shapes(spec)["model.layers.0.self_attn.q_norm.weight"] == (8, 8)

    def test_sliding_layers_of_cohere2_alone_are_rotated(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, architectures=["Cohere2ForCausalLM"], sliding_window=9)
        assert windows_of(spec) == (9, 9, 9, 0)
        assert [rope is not None for rope in ropes_of(spec)] == [True, True, True, False]
        types = ["full_attention", "sliding_attention"] * 2
        spec = spec_of(tmp_path, architectures=["Cohere2ForCausalLM"], sliding_window=9, layer_types=types)
        assert [rope is not None for rope in ropes_of(spec)] == [False, True, False, True]


GRANITE4: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "layer_types": ["attention", "full_attention"] * 2,
    "shared_intermediate_size": 48,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
}


class TestGranite4:
    """Hybrids that are none: every layer attends."""

    def test_without_experts_the_network_beside_them_is_the_only_one(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **GRANITE4, position_embedding_type="rope")
        assert (spec.layers[0].feed_forward, spec.distinct_ropes) == (NetworkSpec(48), (RopeSpec(),))
        assert tensor_shapes(spec)["model.layers.0.shared_mlp.input_linear.weight"] == (96, 64)

    @pytest.mark.parametrize("positions", [None, "nope"])
    def test_layers_are_rotated_where_the_file_says_so_alone(self, tmp_path: Path, positions: str | None) -> None:
        spec = spec_of(tmp_path, **GRANITE4, position_embedding_type=positions)
        assert spec.distinct_ropes == (None,)

    def test_experts_have_that_network_beside_them(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, **GRANITE4 | {"num_local_experts": 4, "num_experts_per_tok": 2})
        assert experts_of(spec) == ExpertsSpec(4, 2, NetworkSpec(96), shared=NetworkSpec(48))
        assert tensor_shapes(spec)["model.layers.3.block_sparse_moe.router.weight"] == (4, 64)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (GRANITE4 | {"layer_types": None}, "layer_types is 'mamba': one layer at least must attend"),
        (GRANITE4 | {"layer_types": ["attention"]}, "must name the type of each of the 4 layers"),
        (GRANITE4 | {"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
        ({"architectures": ["GraniteMoeForCausalLM"], "num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
        ({"architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 1}, "num_experts_per_tok is 2"),
        (
            {"architectures": ["NewForCausalLM"]},
            "'NewForCausalLM' is not supported; nearest is LlamaForCausalLM; `neuronserve",
        ),
        ({"architectures": []}, "architectures is missing"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is missing"),
        ({"architectures": [["LlamaForCausalLM"]]}, "is not supported"),
        ({"auto_map": {"AutoModel": "evil.Model"}}, "auto_map"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config.quant_method is 'hqq'"),
        ({"quantization_config": ["hqq"]}, "quantization_config is ['hqq']: expected `object`"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu': expected 'silu'"),
        ({"architectures": ["MistralForCausalLM"], "mlp_bias": True}, "mlp_bias"),
        ({"architectures": ["Cohere2ForCausalLM"], "mlp_bias": True}, "mlp_bias"),
        (
            {"architectures": ["Ministral3ForCausalLM"], "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "_beta",
        ),
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
        ({"architectures": ["Phi3ForCausalLM"], "attention_bias": True}, "attention_bias"),
        ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 0}, "sliding_window"),
        ({"architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"architectures": ["GemmaForCausalLM"], "hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"architectures": ["Gemma2ForCausalLM"], "attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
        ({"architectures": ["Gemma2ForCausalLM"], "final_logit_softcapping": -30.0}, "final_logit_softcapping"),
        ({"architectures": ["GraniteForCausalLM"], "logits_scaling": 0}, "logits_scaling"),
        ({"architectures": ["Olmo3ForCausalLM"], "layer_types": ["full_attention"]}, "layer_types"),
        ({**GPT2, "num_key_value_heads": 2}, "num_key_value_heads is 2: must be as many as heads, which are 8"),
        ({**GPT2, "head_dim": 16}, "head_dim is 16: must be 8"),
        ({**GPT2, "n_embd": 0}, "n_embd is 0: expected `int` >= 1"),
        ({**GPT2, "scale_attn_weights": False}, "scale_attn_weights is False"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({**GPT2, "add_cross_attention": True}, "add_cross_attention is True"),
        ({**GPT2, "activation_function": "mish"}, "activation_function is 'mish'"),
        ({**OPT, "word_embed_proj_dim": 80}, "word_embed_proj_dim is 80: more than hidden_size, which is 64"),
        ({**OPT, "_remove_final_layer_norm": True}, "_remove_final_layer_norm is True"),
        ({**OPT, "layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False"),
        ({**NEOX, "rotary_pct": 0.0}, "rotary_pct is 0.0"),
        ({**NEOX, "rotary_pct": 0.4}, "partial_rotary_factor is 0.4: turns 3 values of 8, not pairs"),
        ({**NEOX, "layer_norm_eps": -1.0}, "layer_norm_eps is -1.0"),
        ({**COHERE, "logit_scale": 0}, "logit_scale is 0"),
        ({**COHERE, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"architectures": ["Cohere2ForCausalLM"], "sliding_window": None}, "sliding_window is None"),
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
    assert min(spec.num_layers, spec.hidden_size, spec.widest_intermediate, spec.vocab_size, spec.max_position) >= 1
