"""The bias by distance: buckets as transformers has them, at every distance."""

from __future__ import annotations

import numpy as np
import torch
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from neuronserve.server.engine.encode.distances import buckets


def test_buckets_are_those_of_transformers() -> None:
    distances = np.arange(-700, 701)
    want = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances), num_buckets=32).numpy()
    assert np.array_equal(buckets(distances, 32), want)
