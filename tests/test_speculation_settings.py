"""--speculative-config has vLLM's keys; what is not offered is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from neuronserve.server.config.speculation import SpeculationConfig
from neuronserve.server.errors import SettingsError
from neuronserve.server.settings.speculation import read_speculation


def test_keys_are_those_of_vllm() -> None:
    given: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2}
    given |= {"prompt_lookup_max": 6, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    expected = SpeculationConfig("ngram", 4, 2, 6, synthetic_acceptance_length=2.5)
    assert read_speculation(json.dumps(given)) == expected
    assert read_speculation(None) is None
    assert read_speculation('{"method": "suffix", "rejection_sample_method": "standard"}') == SpeculationConfig(
        "suffix"
    )
    given = {"method": "draft_model", "num_speculative_tokens": 3, "model": "small", "quantization": "int8"}
    expected = SpeculationConfig("draft_model", 3, model="small", quantization="int8")
    assert read_speculation(json.dumps(given)) == expected
    only = read_speculation('{"method": "ngram", "prompt_lookup_max": 2}')
    assert only is not None
    assert (only.prompt_lookup_min, only.prompt_lookup_max) == (2, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "eagle3"}, "method 'eagle3' is not offered: choose from ngram, suffix, draft_model"),
        ({"method": None}, "method None is not offered"),
        ({"token_tree": []}, "key 'token_tree' is not offered: choose from method, num_speculative_tokens,"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0: it must be 1 to 63"),
        ({"num_speculative_tokens": "4"}, "num_speculative_tokens is '4': expected `int`"),
        ({"prompt_lookup_min": 9, "prompt_lookup_max": 3}, "prompt_lookup_min is 9, prompt_lookup_max 3"),
        ({"suffix_decoding_min_token_prob": 1.5}, "suffix_decoding_min_token_prob is 1.5: it must be 0.0 to 1.0"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "method draft_model needs model"),
        ({"method": "draft_model", "model": "small"}, "method draft_model needs num_speculative_tokens"),
        ({"model": "small"}, "model is for method draft_model, and method is ngram"),
        ({"rejection_sample_method": "block"}, "rejection_sample_method 'block' is not offered: choose from standard,"),
        ({"rejection_sample_method": "synthetic"}, "synthetic and synthetic_acceptance_length go together"),
        ({"synthetic_acceptance_length": 2.0}, "synthetic and synthetic_acceptance_length go together"),
        (
            {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 99.0},
            "synthetic_acceptance_length is 99.0: it must be 1 to 16",
        ),
    ],
)
def test_what_is_not_offered_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=r"^speculative_config") as refusal:
        read_speculation(json.dumps({"method": "ngram"} | changes))
    assert words in str(refusal.value)


@pytest.mark.parametrize("text", ["{", "[]", '"ngram"', '{"method": "ngram", "method": "suffix"}'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^speculative_config "):
        read_speculation(text)
