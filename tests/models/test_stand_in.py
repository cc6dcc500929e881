"""Planned models of which no record expresses every layer, and of which families read files without architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.planned import planned_spec
from neuronserve.server.models.public import candidates
from neuronserve.server.models.tensors import num_params

[PUBLIC] = candidates("Qwen3.5-27B")


def planned(**changes: Any) -> Any:
    return planned_spec({**PUBLIC.config, **changes})


@pytest.mark.parametrize("architectures", [["Qwen3_5ForCausalLM"], ["OtherForCausalLM"], None])
def test_three_of_four_layers_keep_a_state(architectures: list[str] | None) -> None:
    spec = planned(architectures=architectures)
    assert [layer.state is not None for layer in spec.layers] == [True, True, True, False] * 16
    assert num_params(spec) == num_params(PUBLIC.spec)
    assert spec.stand_in == ""


def test_a_list_of_types_says_which_layers_do() -> None:
    types = ["full_attention"] * 32 + ["linear_attention"] * 32
    assert [layer.state is None for layer in planned(layer_types=types).layers] == [True] * 32 + [False] * 32


def test_a_file_with_a_vision_encoder_nests_the_text() -> None:
    text = {**PUBLIC.config}
    del text["architectures"]
    spec = planned_spec(
        {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text}
    )
    assert num_params(spec) == num_params(PUBLIC.spec)


def test_global_layers_have_the_weights_of_their_own_heads() -> None:
    """A small model of the type has as many parameters as in transformers, but for the rounding of a width."""
    sizes = {"num_hidden_layers": 12, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 2048}
    heads = {"num_global_key_value_heads": 2, "global_head_dim": 512, "attention_k_eq_v": True}
    config = AutoConfig.for_model("gemma4_text", **sizes, **heads, hidden_size_per_layer_input=0)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    spec = planned_spec({**config.to_dict(), **heads})
    assert [layer.mixer.window for layer in spec.layers] == [0] * 12
    assert num_params(spec) == pytest.approx(sum(p.numel() for p in model.parameters()), rel=1e-3)


@pytest.mark.parametrize("change", [{"hidden_size_per_layer_input": 256}, {"enable_moe_block": True}])
def test_other_models_of_that_type_are_refused(change: dict[str, Any]) -> None:
    [gemma] = candidates("gemma-4-31b-it")
    with pytest.raises(ConfigError, match="which the cost model does not price"):
        planned_spec({**gemma.config, **change})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention"]}, "must name the type of each of the 64 layers"),
        ({"layer_types": ["mamba"] * 64}, "layer_types is 'mamba': supported are full_attention, linear_attention"),
        (
            {"linear_num_key_heads": 5},
            "linear_num_value_heads is 48: not a multiple of linear_num_key_heads, which is 5",
        ),
    ],
)
def test_contradictions_are_refused_by_their_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(**changes)
    assert said in str(error.value)
