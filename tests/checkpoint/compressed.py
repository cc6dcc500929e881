"""Writes checkpoints in compressed-tensors form, and what their codes stand for as a plain float32 checkpoint."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from neuronserve.server.models.families import model_spec_of
from neuronserve.server.models.tensors import linear_modules
from tools.random_checkpoint.writer import Options, write_checkpoint

Kind = Literal["int", "float"]
ACTIVATIONS = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
WEIGHTS = {"num_bits": 8, "symmetric": True, "strategy": "channel", "dynamic": False, "group_size": None}


def quantization_config(kind: Kind, ignore: tuple[str, ...] = ("lm_head",), strategy: str = "channel") -> Any:
    """Return the configuration in the form of the tools that make such checkpoints."""
    group = {
        "targets": ["Linear"],
        "weights": {**WEIGHTS, "type": kind, "strategy": strategy, "block_structure": None, "observer": "minmax"},
        "input_activations": {**ACTIVATIONS, "type": kind},
        "output_activations": None,
    }
    return copy.deepcopy(
        {
            "quant_method": "compressed-tensors",
            "format": f"{kind}-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignore),
            "kv_cache_scheme": None,
            "sparsity_config": {},
        }
    )


def quantized(rows: np.ndarray, kind: Kind, strategy: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, K] and bfloat16 scales [N, 1] or [1]."""
    largest = np.abs(rows).max(axis=1, keepdims=True) if strategy == "channel" else np.abs(rows).max()[None]
    limit = 127 if kind == "int" else 448
    scales = (largest / limit).astype(ml_dtypes.bfloat16)
    codes = np.clip(rows / scales.astype(np.float32), -limit, limit)
    return (np.rint(codes).astype(np.int8) if kind == "int" else codes.astype(ml_dtypes.float8_e4m3fn)), scales


def write_both(
    shape: str,
    root: Path,
    kind: Kind,
    strategy: str = "channel",
    ignore: tuple[str, ...] = (),
    edit: Callable[[dict[str, np.ndarray]], object] = lambda _: None,
) -> None:
    """`root`/plain, float32, and `root`/packed, with every linear module but those in `ignore` quantized.

    `edit` may spoil the packed tensors before they are written.
    """
    write_checkpoint(shape, root / "plain", Options(dtype="f32"))
    write_checkpoint(shape, root / "packed", Options(dtype="f32"))
    config = json.loads((root / "plain" / "config.json").read_text())
    plain, packed = load_file(root / "plain" / "model.safetensors"), {}
    modules = set(linear_modules(model_spec_of(config))) - set(ignore)
    for name, tensor in plain.items():
        packed[name] = tensor
        if name.removesuffix(".weight") in modules:
            codes, scales = quantized(tensor, kind, strategy)
            packed |= {name: codes, f"{name}_scale": scales}
            plain[name] = codes.astype(np.float32) * scales.astype(np.float32)
    save_file(plain, root / "plain" / "model.safetensors")
    edit(packed)
    save_file(packed, root / "packed" / "model.safetensors")
    config["quantization_config"] = quantization_config(kind, ignore, strategy)
    (root / "packed" / "config.json").write_text(json.dumps(config))
