"""Every family in every format of weights: how far rounding moves the logits of a model with random weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

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

# Exponentials of projections decide how fast these forget, so the same rounding moves their logits further. They are
# held against torch's rounding of the weights alone, in float32; int8 rounds inputs and the stream too.
STATE_SPACES = ("BambaForCausalLM", "FalconH1ForCausalLM", "NemotronHForCausalLM")
RATIOS: dict[Quantization, float] = {"int8": 2.75, "fp8": 1.0, "int4": 1.0}


def rounded(directory: Path, quantization: Quantization) -> Path:
    """Write the checkpoint with rounded matrices: by row to 8 bits, or by 32 neighbours of a row to 4 bits."""
    to = directory.with_name("rounded")
    shutil.copytree(directory, to)
    tensors = load_file(to / "model.safetensors")
    for name, values in tensors.items():
        if values.dim() == 2 and "embed" not in name:
            whole = values.shape[1] // 32 * 32 if quantization == "int4" else values.shape[1]
            groups = values[:, :whole].float().reshape(len(values), -1, 32 if quantization == "int4" else whole)
            largest = {"int8": 127, "fp8": 448, "int4": 7}[quantization]
            scales = groups.abs().amax(-1, keepdim=True) / largest
            codes = groups / scales
            codes = codes.to(torch.float8_e4m3fn).float() if quantization == "fp8" else codes.round()
            values[:, :whole] = (codes * scales).reshape(len(values), whole)
    save_file(tensors, to / "model.safetensors")
    return to


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

    def error(of: Path, *served: Quantization) -> float:
        return float(np.abs(load(of, 1, False, *served).runner.logits(TOKENS) - want).mean() / np.abs(want).mean())

    limit = LIMITS[quantization]
    if architecture in STATE_SPACES:
        limit = RATIOS[quantization] * error(rounded(directory, quantization))
    assert 0 < error(directory, quantization) <= limit
