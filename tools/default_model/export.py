"""Export a training checkpoint as the package that the server embeds: BF16 safetensors and configs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tools.default_model.chat import PACKAGE_DIR
from tools.default_model.model import Shape

GENERATION = {"eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": True, "temperature": 0.6, "top_p": 0.95}


def export(checkpoint: Path, directory: Path) -> int:
    """Write model.safetensors, config.json and generation_config.json; returns the number of parameters."""
    weights = torch.load(checkpoint, weights_only=True)["model"]
    tensors = {f"model.{name}": tensor.bfloat16().contiguous() for name, tensor in weights.items()}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # safetensors are written for their owner alone
    (directory / "config.json").write_text(json.dumps(Shape().hugging_face(), indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")
    return sum(tensor.numel() for tensor in tensors.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=PACKAGE_DIR)
    args = parser.parse_args()
    print(f"{export(args.checkpoint, args.out)} parameters")


if __name__ == "__main__":
    main()
