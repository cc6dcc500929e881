"""Export an encoder's checkpoint as ONNX in INT8 for `--onnxruntime-model`. Needs a Python with torch and onnxruntime.

Weights are INT8 and activations are quantized dynamically (onnxruntime's `quantize_dynamic`, one scale a channel).
usage: python -m benchmarks.embed_export MODEL_DIR OUT.onnx
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic


class States(torch.nn.Module):  # type: ignore[misc]  # torch is not there when types are checked
    """A model that returns the last states alone, with inputs of these names."""

    def __init__(self, model: Any, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Any) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True))).last_hidden_state


def main() -> None:
    directory, out = sys.argv[1:]
    model = transformers.AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    ids = torch.randint(5, 100, (2, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros_like(ids)
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place, "float32.onnx")
        torch.onnx.export(
            States(model, list(inputs)),
            tuple(inputs.values()),
            str(whole),
            input_names=list(inputs),
            output_names=["states"],
            dynamic_axes={name: {0: "texts", 1: "tokens"} for name in [*inputs, "states"]},
            opset_version=17,
            dynamo=False,
        )
        quantize_dynamic(whole, out, per_channel=True, weight_type=QuantType.QInt8)


if __name__ == "__main__":
    main()
