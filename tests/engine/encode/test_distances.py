"""Biases and rows by distance: those of transformers, at every distance."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from neuronserve.server.engine.encode.distances import buckets, row_numbers
from neuronserve.server.models.linear import Axis, Vector
from neuronserve.server.models.ops import DistanceBuckets


def test_buckets_are_those_of_transformers() -> None:
    distances = np.arange(-700, 701)
    want = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances), num_buckets=32).numpy()
    assert np.array_equal(buckets(distances, 32), want)


@pytest.mark.parametrize(("span", "longest"), [(256, 512), (256, 4096), (16, 160), (100, 333)])
def test_rows_are_those_of_deberta(span: int, longest: int) -> None:
    distances = np.arange(1 - longest, longest)
    want = make_log_bucket_position(torch.from_numpy(distances), span, longest).long() + span
    op = DistanceBuckets(Vector("rows", 2 * span * 8, Axis("rows", 2 * span, 8), rows=2 * span), longest, False)
    assert np.array_equal(row_numbers(op, distances), want.clamp(0, 2 * span - 1).numpy())
