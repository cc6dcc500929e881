"""Write a random LoRA adapter of a checkpoint in PEFT's format, for tests and benchmarks.

python -m tools.random_checkpoint.adapter MODEL DIRECTORY [--rank 16] [--seed 0] [--targets q_proj,v_proj]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from neuronserve.server.checkpoint.lora_adapter import module_widths
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.placement.adapters import adaptable

PREFIX = "base_model.model."


def adapter_tensors(
    model: Path, rank: int, targets: Sequence[str] | None = None, seed: int = 0, ranks: Mapping[str, int] | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """Return A [rank, inputs] and B [outputs, rank] of each module of `model`, or of those whose last word is a target.

    `ranks` overrides the rank of some targets. B A x is about a tenth as long as x.
    """
    random, tensors = np.random.default_rng(seed), dict[str, npt.NDArray[np.float32]]()
    linears = adaptable(decoder_graph(read_model_spec(model)))
    for module, (inputs, outputs) in module_widths(linears).items():
        word = module.rpartition(".")[2]
        if targets is not None and word not in targets:
            continue
        r = (ranks or {}).get(word, rank)
        for side, shape in (("A", (r, inputs)), ("B", (outputs, r))):
            values = random.standard_normal(shape, np.float32) / np.float32(shape[1]) ** 0.5
            values *= np.float32(0.1 if side == "B" else 1.0)
            tensors[f"{PREFIX}{module}.lora_{side}.weight"] = values
    return tensors


def write_adapter(directory: Path, tensors: Mapping[str, npt.NDArray[Any]], **config: Any) -> Path:
    """Write an adapter; `config` are keys of adapter_config.json that override those of a plain adapter."""
    directory.mkdir(parents=True, exist_ok=True)
    a = [values for name, values in tensors.items() if name.endswith("lora_A.weight")]
    targets = sorted({name.split(".")[-3] for name in tensors if ".lora_" in name})
    plain = {"peft_type": "LORA", "r": len(a[0]) if a else 1, "lora_alpha": 16, "target_modules": targets}
    (directory / "adapter_config.json").write_text(json.dumps(plain | config, indent=1) + "\n")
    save_file(dict(tensors), directory / "adapter_model.safetensors")
    return directory


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="write a random LoRA adapter")
    parser.add_argument("model", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", help="last words of modules, with commas (default: all)")
    args = parser.parse_args()
    targets = None if args.targets is None else args.targets.split(",")
    write_adapter(args.directory, adapter_tensors(args.model, args.rank, targets, args.seed))


if __name__ == "__main__":
    main()
