"""Stand-ins for layers of gated DeltaNet: as many weights, and a cache of one token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.layer import ExpertsSpec, NetworkSpec
from neuronserve.server.models.planned import planned_spec
from neuronserve.server.models.public import candidates
from neuronserve.server.models.stand_in import DeltaNetConfig
from neuronserve.server.models.tensors import num_params

[PUBLIC] = candidates("Qwen3.5-27B")


def planned(**changes: Any) -> Any:
    return planned_spec({**PUBLIC.config, **changes})


def test_three_of_four_layers_keep_a_state() -> None:
    spec = planned()
    assert [layer.mixer.window for layer in spec.layers] == [1, 1, 1, 0] * 16
    assert spec.stand_in == DeltaNetConfig.reason
    assert planned_spec(candidates("Qwen3-32B")[0].config).stand_in == ""


def test_a_list_of_types_says_which_layers_do() -> None:
    types = ["full_attention"] * 32 + ["linear_attention"] * 32
    assert [layer.mixer.window for layer in planned(layer_types=types).layers] == [0] * 32 + [1] * 32


def test_the_projections_of_a_state_have_their_weights() -> None:
    """Qwen3.5-27B: 5,120 x (4,096 of q and k, 3 x 6,144 of v, gate and output, 96 of decays) and a convolution of 4."""
    state, full = planned().layers[0].feed_forward, planned().layers[3].feed_forward
    assert isinstance(state, NetworkSpec)
    assert isinstance(full, NetworkSpec)
    weights = 5120 * (4096 + 3 * 6144 + 96) + (4096 + 6144) * 4
    attention = 5120 * (3 * 24 + 2 * 4) * 256
    assert 3 * 5120 * (state.size - full.size) == pytest.approx(weights - attention, abs=3 * 5120)


def test_of_experts_the_shared_network_is_wider() -> None:
    [row] = candidates("Qwen3.5-35B-A3B")
    state, full = (row.spec.layers[i].feed_forward for i in (0, 3))
    assert isinstance(state, ExpertsSpec)
    assert isinstance(full, ExpertsSpec)
    assert state.shared is not None
    assert full.shared is not None
    assert state.shared.size > full.shared.size
    assert state.expert == full.expert


def test_a_file_with_a_vision_encoder_nests_the_text() -> None:
    text = {**PUBLIC.config}
    names = text.pop("architectures")
    spec = planned_spec({"architectures": names, "model_type": "qwen3_5", "text_config": text})
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
        ({"layer_types": ["full_attention"]}, "layer_types is ['full_attention']: must have 64 entries"),
        ({"layer_types": ["mamba"] * 64}, "layer_types[0] is 'mamba'"),
        ({"linear_num_key_heads": None}, "linear_num_key_heads is missing"),
    ],
)
def test_contradictions_are_refused_by_their_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(**changes)
    assert said in str(error.value)
