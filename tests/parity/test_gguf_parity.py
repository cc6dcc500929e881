"""GGUF files of families whose tensors conversion takes apart, against transformers on the values of the file.

The models are the rows of tests/checkpoint/gguf/test_apart.py, which name their keys in a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.models.families import ARCHITECTURES
from neuronserve.server.models.tensors import tensor_shapes
from tests.checkpoint.gguf.made import F32, write_gguf
from tests.checkpoint.gguf.test_apart import CASES, file_of
from tests.parity.test_family_parity import FLOAT32_TOLERANCE, engine

Q8_0 = gguf.GGMLQuantizationType.Q8_0
TOKENS = np.random.default_rng(1).integers(0, 300, 60).tolist()
KINDS = {name: kind for kind, name in ARCHITECTURES.items()}
# Factors that the file has in its weights (conversion/falcon_h1.py).
FACTORS = {
    "falcon-h1": {
        "key_multiplier": 0.7,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.9,
        "ssm_multipliers": [0.6, 0.8, 1.1, 1.2, 0.9],
        "ssm_in_multiplier": 1.4,
        "ssm_out_multiplier": 0.8,
        "mlp_multipliers": [0.7, 1.2],
        "lm_head_multiplier": 0.5,
        "embedding_multiplier": 3.0,
    }
}
FOLDED = {
    r"self_attn\.q_proj": 1.3,
    r"self_attn\.k_proj": 1.3 * 0.7,
    r"self_attn\.v_proj": 1.3,
    r"self_attn\.o_proj": 0.9,
    r"feed_forward\.gate_proj": 0.7,
    r"feed_forward\.down_proj": 1.2,
    r"mamba\.out_proj": 0.8,
    r"^lm_head": 0.5,
    r"embed_tokens": 3.0,
    # Rows of z, x, B, C and the steps.
    r"mamba\.in_proj": 1.4 * np.repeat([0.6, 0.8, 1.1, 1.2, 0.9], [128, 128, 28, 28, 8])[:, None],
}
NAMES = (
    *("deepseek-v2-groups", "deepseek-v3", "glm4moe", "gemma4", "gemma4-experts", "granite-4"),
    *("bamba", "falcon-h1", "nemotron_h", "nemotron_h_moe", "qwen3next"),
)


def random_model(own: dict[str, Any]) -> Any:
    """transformers' model of a config.json with random values, none of which is neutral."""
    (hub_name,) = own["architectures"]
    config = transformers.AutoConfig.for_model(KINDS[hub_name], **own)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, values in model.state_dict().items():
            is_gain = values.dim() == 1 and name.endswith(("weight", "scalar", "scale"))
            values.copy_(is_gain + torch.randn_like(values) * (0.2 if values.dim() < 2 else values.shape[-1] ** -0.5))
    return model


def folded(name: str, values: np.ndarray) -> np.ndarray:
    return values * np.float32(next((by for pattern, by in FOLDED.items() if re.search(pattern, name)), 1.0))


# Codes of a matrix that was multiplied first stand for other values.
CASES_OF_KINDS = [(name, kind) for name in NAMES for kind in (F32, Q8_0) if kind == F32 or name not in FACTORS]


@pytest.mark.parametrize(("name", "kind"), CASES_OF_KINDS, ids=lambda each: getattr(each, "name", each))
def test_logits_are_those_of_transformers(tmp_path: Path, kernel_cache: str, name: str, kind: Any) -> None:
    """Logits of a quantized file are those of the values that its codes stand for."""
    own = CASES[name].own | FACTORS.get(name, {})
    model = random_model(own)
    if kind == Q8_0:
        quantize(model)
    model.save_pretrained(tmp_path / "plain")
    spec = read_model_spec(tmp_path / "plain")
    plain = Checkpoint.open(tmp_path / "plain", spec)
    tensors = {each: plain.load(each) for each in tensor_shapes(spec)}
    if name in FACTORS:
        tensors = {each: folded(each, values) for each, values in tensors.items()}
    path = write_gguf(tmp_path / "m.gguf", file_of(CASES[name]), tensors, lambda each: kind if is_coded(each) else F32)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS]), use_cache=False).logits[0].numpy()
    with engine(gguf_directory(path, tmp_path / "cache"), kernel_cache, 1) as found:
        got = found.runner.logits(TOKENS)
    assert np.abs(got - expected).max() <= FLOAT32_TOLERANCE * np.abs(expected).max()


def is_coded(name: str) -> bool:
    """Return whether a file has codes of a matrix. Those of experts of 24 values do not fill a block."""
    return (
        bool(re.search(r"(q|k|v|gate|up|in|qkv|z|qkvz|input)_?(proj|linear)|input_linear", name))
        and "experts" not in name
    )


def quantize(model: Any) -> None:
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() == 2 and is_coded(name) and values.shape[1] % 32 == 0:
                codes = gguf.quants.quantize(values.numpy(), Q8_0)
                values.copy_(torch.from_numpy(gguf.quants.dequantize(codes, Q8_0)))
