"""Every family in every format of weights: how far rounding moves the logits of a model with random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from neuronserve.server.config.formats import Quantization
from neuronserve.server.engine.load.loading import LoadedEngine
from tests.depth import representative
from tools.family_table import SHAPE_OF

# Mean error over mean logit. Random weights have no outliers and no margins: a floor of what a format costs.
LIMITS: dict[Quantization, float] = {"int8": 0.06, "fp8": 0.15, "int4": 0.4, "mxfp8": 0.15, "int8-groups": 0.06}
OF_ALL: tuple[Quantization, ...] = ("int8", "fp8", "int4")
TOKENS = np.random.default_rng(2).integers(0, 300, 120).tolist()
SOME = ("LlamaForCausalLM", "GPT2LMHeadModel", "MixtralForCausalLM", "Gemma2ForCausalLM")
CASES = [(architecture, quantization) for architecture in SHAPE_OF for quantization in OF_ALL] + [
    (architecture, quantization) for architecture in SOME for quantization in ("mxfp8", "int8-groups")
]
OFTEN = [*((name, "int4") for name in SOME), ("MixtralForCausalLM", "mxfp8"), ("Gemma2ForCausalLM", "int8-groups")]


@pytest.mark.parametrize(("architecture", "quantization"), representative(CASES, *OFTEN))
def test_a_format_moves_logits_by_no_more_than_its_rounding(
    checkpoint_of: Callable[[str], Path],
    load: Callable[..., LoadedEngine],
    tmp_path: Path,
    architecture: str,
    quantization: Quantization,
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(checkpoint_of(SHAPE_OF[architecture]), directory)
    config = json.loads((directory / "config.json").read_text())
    for count in ("num_local_experts", "num_experts"):
        if count in config:  # all are chosen: otherwise rounding may turn a choice, and what follows
            config |= {"num_experts_per_tok": config[count]}
    (directory / "config.json").write_text(json.dumps(config))
    want = load(directory, 1, False).runner.logits(TOKENS)
    got = load(directory, 1, False, quantization).runner.logits(TOKENS)
    error = np.abs(got - want).mean() / np.abs(want).mean()
    assert 0 < error <= LIMITS[quantization]
