"""Planned models with layers that keep a state, also of files without architectures."""

from __future__ import annotations

from typing import Any

import pytest

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
