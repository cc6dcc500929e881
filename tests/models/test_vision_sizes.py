"""Sizes of a vision encoder that do not belong together are refused by their key."""

from __future__ import annotations

from typing import Any

import pytest

from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.families.vision import vision_of

SCOUT: dict[str, Any] = {  # Llama 4 Scout's
    "hidden_size": 1408,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "vision_output_dim": 4096,
    "rope_theta": 10_000,
}


def llama4(**changes: Any) -> dict[str, Any]:
    names = {"architectures": ["Llama4ForConditionalGeneration"], "text_config": {"hidden_size": 5120}}
    return {**names, "vision_config": {**SCOUT, **changes}}


def test_published_sizes_are_read() -> None:
    vision = vision_of(llama4())
    assert vision is not None
    assert (vision.patch.grid_side, vision.merge, len(vision.layers), vision.token_id) == (24, 2, 34, 200_092)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pixel_shuffle_ratio": 0.4}, "vision_config.pixel_shuffle_ratio is 0.4: must be 1 / n"),
        ({"image_size": 350}, "where n divides the 25 patches"),
        ({"intermediate_size": 5600}, "vision_config.intermediate_size is 5600: must be 5632"),
        ({"projector_input_dim": 2048}, "vision_config.projector_input_dim is 2048: must be 4096"),
        ({"vision_output_dim": 7680}, "vision_config.vision_output_dim is 7680: must be 4096"),
        ({"hidden_size": 1400}, "vision_config."),
        ({"image_size": [336, 336]}, "vision_config.image_size"),
    ],
)
def test_sizes_that_contradict_others_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        vision_of(llama4(**changes))
    assert named in str(caught.value)
