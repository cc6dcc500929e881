"""Any config.json by generic keys: sizes as transformers builds them, and refusals that name the key."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.families import ARCHITECTURES
from neuronserve.server.models.families.generic import TRAITS
from neuronserve.server.models.layer import ExpertsSpec, FeedForward, NetworkSpec
from neuronserve.server.models.planned import SYNONYMS, planned_spec
from neuronserve.server.models.public import models
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params
from tests.model_specs import network_of, windows_of

# The first four are remote code there, the next eight cannot be built by 5.x from its defaults, of the next two the
# indexer is left out, encoder-decoders are not planned, the next have other layers, and XGLM's sines are no parameters.
NOT_IN_TRANSFORMERS = {
    *("deepseek", "baichuan", "internlm2", "minicpm", "dbrx", "ministral", "nemotron", "lfm2_moe"),
    *("hunyuan_v1_dense", "hunyuan_v1_moe", "dots1", "glm4_moe", "deepseek_v32", "glm_moe_dsa"),
    *("bart", "marian", "mbart", "mt5", "pegasus", "t5", "whisper"),
    *("deberta-v2", "bamba", "nemotron_h", "granitemoehybrid", "gemma4_text", "xglm"),
}
SINCE = {"internlm3": (5, 23)}  # releases of transformers that were the first to know a type
SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def planned(*without: str, **changes: Any) -> ModelSpec:
    return planned_spec({key: value for key, value in (SMALL | changes).items() if key not in without})


def feed_forwards(spec: ModelSpec) -> list[FeedForward]:
    return [layer.feed_forward for layer in spec.layers]


def _transformers() -> tuple[int, ...]:
    return tuple(map(int, transformers.__version__.split(".")[:2]))


@pytest.mark.parametrize("model_type", sorted({*TRAITS, *ARCHITECTURES} - NOT_IN_TRANSFORMERS))
def test_a_type_has_as_many_parameters_as_in_transformers(model_type: str) -> None:
    if _transformers() < SINCE.get(model_type, (5,)):
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    config = AutoConfig.for_model(model_type)
    spec = planned_spec(config.to_dict())
    with torch.device("meta"):
        model = (AutoModel if spec.is_encoder else AutoModelForCausalLM).from_config(config)
    # Left out: biases of attention's positions, of routing scores, of gates on shared experts.
    assert num_params(spec) == pytest.approx(sum(p.numel() for p in model.parameters()), rel=2e-5)
    assert spec.num_layers == config.num_hidden_layers


def test_a_type_names_the_family_that_serves_it() -> None:
    rows = [row for row in models() if row.config["model_type"] in ARCHITECTURES.keys() - TRAITS.keys()]
    assert {row.config["architectures"][0] for row in rows} > {"GPT2LMHeadModel", "Qwen3MoeForCausalLM"}
    for row in rows:
        bare = planned_spec({key: value for key, value in row.config.items() if key != "architectures"})
        if row.config["architectures"] == [ARCHITECTURES[row.config["model_type"]]]:
            assert bare == replace(row.spec, architecture=row.config["model_type"])


def test_other_names_of_keys_mean_the_same() -> None:
    other = {"n_embd": 64, "n_inner": 96, "n_layer": 4, "n_head": 8, "num_kv_heads": 2, "n_positions": 256}
    assert planned_spec({"model_type": "llama", "vocab_size": 128, **other}) == planned()
    names = [name for key, others in SYNONYMS.items() for name in (key, *others)]
    assert len(names) == len(set(names))


def test_dimensions_may_be_inside_text_config() -> None:
    inner = {key: value for key, value in SMALL.items() if key != "vocab_size"}
    outer = {"architectures": ["SeesToo"], "model_type": "sees-too", "vocab_size": 128}
    assert planned_spec({**outer, "text_config": inner}) == planned(architectures=["SeesToo"])


def test_a_file_without_a_type_is_like_llama() -> None:
    assert planned("model_type") == planned()


def test_experts_have_their_own_width_and_dense_layers_theirs() -> None:
    spec = planned(**EXPERTS, first_k_dense_replace=1, n_shared_experts=2)
    experts = ExpertsSpec(8, 2, NetworkSpec(32))
    with_shared = replace(experts, shared=NetworkSpec(64))
    assert feed_forwards(spec) == [NetworkSpec(96), with_shared, with_shared, with_shared]
    every_other = planned(**EXPERTS, decoder_sparse_step=2, mlp_only_layers=[3])
    assert feed_forwards(every_other) == [NetworkSpec(96), experts, NetworkSpec(96), NetworkSpec(96)]
    assert feed_forwards(planned(**EXPERTS)) == [experts] * 4
    assert network_of(planned(num_local_experts=8, num_experts_per_tok=2)).size == 96


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (0, 0, 0, 0)),
        ({"sliding_window": 16}, (16, 16, 16, 16)),
        ({"sliding_window": 0}, (0, 0, 0, 0)),
        ({"sliding_window": 256}, (0, 0, 0, 0)),
        ({"sliding_window": 16, "use_sliding_window": False}, (0, 0, 0, 0)),
        ({"sliding_window": 16, "sliding_window_pattern": 2}, (16, 0, 16, 0)),
        ({"model_type": "gemma2", "sliding_window": 16}, (16, 0, 16, 0)),
        ({"model_type": "modernbert", "local_attention": 16, "global_attn_every_n_layers": 3}, (0, 16, 16, 0)),
        ({"sliding_window": 16, "layer_types": ["full_attention"] * 4}, (0, 0, 0, 0)),
        ({"sliding_window": 16, "layer_types": ["sliding_attention", *["full_attention"] * 3]}, (16, 0, 0, 0)),
    ],
)
def test_windows(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert windows_of(planned(**changes)) == windows


def test_learned_positions_leave_out_those_of_the_padding() -> None:
    opt = planned("num_key_value_heads", model_type="opt")
    assert (opt.stack.input.num_positions, opt.max_position) == (258, 256)
    roberta = planned("num_key_value_heads", model_type="roberta", max_position_embeddings=514)
    assert (roberta.stack.input.num_positions, roberta.max_position) == (514, 512)
    assert planned().stack.input.num_positions == 0


def test_what_has_other_positions_is_not_rotated() -> None:
    for model_type in ("gpt2", "bloom", "gpt_bigcode"):
        assert planned("num_key_value_heads", model_type=model_type).distinct_ropes == (None,)
    assert None not in planned().distinct_ropes


@pytest.mark.parametrize(
    ("changes", "without", "complaint"),
    [
        ({}, "hidden_size", "hidden_size is missing, and so is every other name of it (n_embd, n_embed, d_model, dim)"),
        ({}, "vocab_size", "vocab_size is missing"),
        ({}, "max_position_embeddings", "max_position_embeddings is missing"),
        ({"hidden_size": "64"}, "", "hidden_size is '64'"),
        ({"num_hidden_layers": 1 << 40}, "", "num_hidden_layers is"),
        ({"num_attention_heads": 7}, "", "num_attention_heads is 7: not a multiple of num_key_value_heads, which is 2"),
        ({"num_attention_heads": 10}, "", "hidden_size is 64: not a multiple of num_attention_heads, 10"),
        ({**EXPERTS, "num_experts_per_tok": 9}, "", "num_experts_per_tok is 9: must be 1 to num_experts, which is 8"),
        ({**EXPERTS, "first_k_dense_replace": 4}, "", "num_experts is 8: no layer has experts"),
        ({"is_encoder_decoder": True}, "", "is_encoder_decoder is True: 'llama' has an encoder with a decoder"),
        ({"kv_lora_rank": 512}, "", "kv_lora_rank is 512: 'llama' has latent attention (MLA), which the cost model"),
        (
            {"architectures": ["XForCausalLM"], "mamba_d_state": 8},
            "",
            "mamba_d_state is 8: XForCausalLM has a state in",
        ),
        (
            {"num_kv_heads": [2, 4]},
            "num_key_value_heads",
            "num_kv_heads is [2, 4]: 'llama' has KV heads that differ by",
        ),
        ({"num_global_key_value_heads": 4}, "", "num_global_key_value_heads is 4: 'llama' has KV heads that differ by"),
        ({"cross_attention_layers": [3]}, "", "cross_attention_layers is [3]: 'llama' has cross attention"),
        ({"linear_num_value_heads": 4}, "", "linear_num_value_heads is 4: 'llama' has linear attention"),
        ({"layer_types": ["conv"] * 4, "sliding_window": 8}, "", "layer_types is 'conv'"),
        ({"layer_types": ["full_attention"], "sliding_window": 8}, "", "layer_types is"),
        ({"model_type": "grok"}, "", "model_type 'grok' is not known"),
        ({"model_type": ["llama"]}, "", "model_type ['llama'] is not known"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_its_key(changes: dict[str, Any], without: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(without, **changes)
    assert str(error.value).startswith(complaint)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=3)
NAMES = sorted({name.partition(".")[0] for key, others in SYNONYMS.items() for name in (key, *others)})


@given(st.dictionaries(st.sampled_from([*NAMES, "model_type", "architectures", "text_config", "layer_types"]), VALUES))
def test_any_values_are_a_model_or_a_refusal(changes: dict[str, Any]) -> None:
    with suppress(ConfigError):
        assert planned(**changes).num_layers >= 1
