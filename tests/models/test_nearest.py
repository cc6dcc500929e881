"""The supported architecture nearest to one that is not, and what it lacks."""

from __future__ import annotations

from typing import Any

import pytest

from neuronserve.server.models.families import FAMILIES, model_spec_of
from neuronserve.server.models.families.nearest import not_supported
from neuronserve.server.typed_json import JsonError

KNOWN = {
    name: FAMILIES[name]
    for name in ("LlamaForCausalLM", "MixtralForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3Model")
} | {"Gemma2ForCausalLM": FAMILIES["Gemma2ForCausalLM"], "BertModel": FAMILIES["BertModel"]}


@pytest.mark.parametrize(
    ("name", "config", "nearest"),
    [
        ("Qwen3NewForCausalLM", {"mamba_d_state": 16, "num_experts": 8}, "Qwen3MoeForCausalLM, which lacks state"),
        ("Qwen3NewForCausalLM", {"num_experts": 1}, "Qwen3ForCausalLM; "),
        ("Qwen3NewModel", {}, "Qwen3Model; "),
        ("Gemma9ForCausalLM", {"num_experts": 8}, "Gemma2ForCausalLM, which lacks experts (num_experts); "),
        ("NewForCausalLM", {}, "LlamaForCausalLM; "),
        ("NewForCausalLM", {"n_group": 1, "n_routed_experts": 8}, "MixtralForCausalLM; "),
        ("NewForCausalLM", {"n_group": 4}, "LlamaForCausalLM, which lacks routing limited to groups of experts (n"),
        (
            "NewForConditionalGeneration",
            {"vision_config": {"depth": 2}, "text_config": {"lru_width": 8, "alibi": False}},
            "LlamaForCausalLM, which lacks vision input (vision_config), state layers of kind RG-LRU (lru_width); ",
        ),
        ("NewForMaskedLM", {}, "BertModel; "),
        (["NewForCausalLM"], {}, "LlamaForCausalLM; "),
        ("", {"text_config": ["no object"]}, "LlamaForCausalLM; "),
    ],
)
def test_one_line_names_the_nearest_and_what_it_lacks(name: object, config: dict[str, Any], nearest: str) -> None:
    line = not_supported(name, config, KNOWN)
    assert f"is not supported; nearest is {nearest}" in line
    assert line.endswith("`neuronserve models` lists all")
    assert "\n" not in line


def test_a_mechanism_that_the_nearest_reads_is_not_lacking() -> None:
    with pytest.raises(JsonError) as refused:
        model_spec_of({"architectures": ["MixtralNewForCausalLM"], "num_local_experts": 8, "kv_lora_rank": 4})
    assert "nearest is MixtralForCausalLM, which lacks latent attention (kv_lora_rank); " in str(refused.value)
