"""A served family's own reader and the generic keys of planning agree on what a public model is, in all that costs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from neuronserve.server.models.families import FAMILIES
from neuronserve.server.models.planned import planned_spec
from neuronserve.server.models.public import PublicModel, models
from neuronserve.server.models.spec import ModelSpec

# What changes no byte and no time, and is not read by generic keys; and names.
FREE = {
    "architecture",
    "attention_scale",
    "embedding_scale",
    "first_position",
    "has_plain_qk_norm",
    "is_chunked",
    "logit_cap",
    "logit_scale",
    "names",
    "norm_offset",
    "num_distance_buckets",
    "residual_scale",
    "routing",
    "rms_norm_eps",
    "rope",
    "ropes",
    "score_cap",
    "temperature",
    "weighs_expert_inputs",
}
SIZES = sorted({field.name for field in fields(ModelSpec)} - FREE)
SERVED = [row for row in models() if row.config["architectures"][0] in FAMILIES]


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row.hub_id)
def test_both_readers_see_the_same_sizes_norms_biases_and_windows(row: PublicModel) -> None:
    generic, own = planned_spec(row.config | {"architectures": ["Other"]}), planned_spec(row.config)
    assert own.architecture == row.config["architectures"][0]
    differences = {
        name: (getattr(own, name), getattr(generic, name))
        for name in SIZES
        if getattr(own, name) != getattr(generic, name)
    }
    assert differences == {}
