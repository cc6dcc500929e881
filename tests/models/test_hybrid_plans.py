<<<<<<<< HEAD:tests/models/test_planned_states.py
"""Planned models with layers that keep a state, also of files without architectures."""
========
"""Planned models with a state, and with heads of several sizes, also from files without architectures."""
>>>>>>>> w32-statek:tests/models/test_hybrid_plans.py

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


<<<<<<<< HEAD:tests/models/test_planned_states.py
========
def test_global_layers_have_heads_of_their_own() -> None:
    [gemma] = candidates("gemma-4-31b-it")
    heads = {(each.num_kv_heads, each.head_dim) for each in gemma.spec.attention_layers}
    assert heads == {(16, 256), (4, 512)}


def test_embeddings_of_each_layer_are_refused() -> None:
    [gemma] = candidates("gemma-4-31b-it")
    with pytest.raises(ConfigError, match="hidden_size_per_layer_input is 256"):
        planned_spec({**gemma.config, "hidden_size_per_layer_input": 256})


>>>>>>>> w32-statek:tests/models/test_hybrid_plans.py
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
