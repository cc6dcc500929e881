"""Every kernel of every path that this host can run is held to numpy somewhere here; the other paths are named."""

from __future__ import annotations

import pytest

from server.config.formats import Isa, WeightFormat
from server.device.isa import BY_ISA, ISAS
from server.device.layout import WEIGHT_BYTES
from server.kernels.dispatch import host_isas, linear_kernels_of
from server.kernels.isa.target import host_features
from tests.kernels import test_group_matmul, test_matmul

ALIKE: dict[WeightFormat, WeightFormat] = {"int8-rotated": "int8"}  # the same kernels of products


@pytest.mark.parametrize("isa", ISAS)
def test_each_product_of_a_path_is_compared_with_numpy(isa: Isa) -> None:
    """A path that is skipped is one of which this run proves nothing; `make arm-test` runs those of ARM emulated."""
    if isa not in host_isas():
        lacks = ", ".join(BY_ISA[isa].lacks(host_features())) if isa in BY_ISA else ""
        pytest.skip(f"no kernel of {isa} was run: this host lacks {lacks or 'its permission'}")
    own = {ALIKE.get(weights, weights) for weights in WEIGHT_BYTES if linear_kernels_of(weights, isa).isa == isa}
    compared = {weights for weights, path in (*test_matmul.CASES, *test_group_matmul.CASES) if path == isa}
    assert compared == own
