"""PEFT's adapters: what is read out of them, and what is refused by name."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuronserve.server.checkpoint.lora_adapter import LoraAdapter
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.placement.adapters import adaptable
from tools.random_checkpoint.adapter import PREFIX, adapter_tensors, write_adapter
from tools.random_checkpoint.writer import write_checkpoint

Tensors = dict[str, np.ndarray]
Open = Callable[..., LoraAdapter]
GATE = "model.layers.0.mlp.gate_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapters") / "model"
    write_checkpoint("tiny-llama", directory)
    return directory


@pytest.fixture
def opened(model: Path, tmp_path: Path) -> Open:
    """(tensors, **config) -> the adapter, opened for the model; ranks to 32."""
    linears = list(adaptable(decoder_graph(read_model_spec(model))))
    return lambda tensors, **config: LoraAdapter(write_adapter(tmp_path / "adapter", tensors, **config), linears, 32)


def test_modules_ranks_and_scales(model: Path, opened: Open) -> None:
    tensors = adapter_tensors(model, 8, ranks={"up_proj": 2})
    patterns = {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {r"model\.layers\.1\.mlp\.up_proj": 5}}
    adapter = opened(tensors, **patterns)
    assert len(adapter.modules) == 7 * 3
    assert adapter.rank == 8
    found = {name: (module.rank, module.scale) for name, module in adapter.modules.items()}
    assert found[GATE] == (8, 2.0)
    assert found["model.layers.0.mlp.up_proj"] == (2, 8.0)
    assert found["model.layers.1.mlp.up_proj"] == (2, 2.5)
    assert opened(tensors, use_rslora=True, **patterns).modules[GATE].scale == 16 / math.sqrt(8)
    assert np.array_equal(adapter.array(f"{PREFIX}{GATE}.lora_A.weight"), tensors[f"{PREFIX}{GATE}.lora_A.weight"])


@pytest.mark.parametrize("nested", ["language_model.model.", "model.language_model."])
def test_adapters_of_a_model_that_sees_pictures_fit_its_text(model: Path, opened: Open, nested: str) -> None:
    tensors = adapter_tensors(model, 8)
    named = {name.replace(f"{PREFIX}model.", PREFIX + nested): values for name, values in tensors.items()}
    assert opened(named).modules.keys() == opened(tensors).modules.keys()


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_values_are_read_as_float32(model: Path, opened: Open, dtype: Any) -> None:
    tensors = {name: values.astype(dtype) for name, values in adapter_tensors(model, 4, ("q_proj",)).items()}
    name = next(iter(tensors))
    values = opened(tensors).array(name)
    assert values.dtype == np.float32
    assert np.array_equal(values, tensors[name].astype(np.float32))


def test_the_digest_is_that_of_the_files(model: Path, opened: Open, tmp_path: Path) -> None:
    tensors = adapter_tensors(model, 4, ("q_proj",))
    digest = opened(tensors).digest
    assert opened(tensors).digest == digest
    assert opened(tensors, lora_alpha=17).digest != digest
    name = next(iter(tensors))
    assert opened(tensors | {name: tensors[name] + 1}).digest != digest
    assert len(digest) == 64
    assert tmp_path.exists()


ALLOWED: list[dict[str, Any]] = [
    {"target_modules": "all-linear"},
    {"target_modules": r"(?:.*?(?:self_attn|mlp).*?(?:proj).*?)+"},  # is not run
    {"layers_to_transform": [0, 1, 2]},
    {"bias": "none", "modules_to_save": None, "init_lora_weights": "gaussian", "lora_dropout": 0.1},
    {"rank_pattern": {}, "alpha_pattern": {}, "task_type": "CAUSAL_LM", "peft_version": "0.18.0"},
]


@pytest.mark.parametrize("config", ALLOWED)
def test_forms_of_plain_adapters(model: Path, opened: Open, config: dict[str, Any]) -> None:
    assert len(opened(adapter_tensors(model, 4), **config).modules) == 21


def test_layers_may_be_few(model: Path, opened: Open) -> None:
    tensors = {name: values for name, values in adapter_tensors(model, 4).items() if ".layers.1." in name}
    assert len(opened(tensors, layers_to_transform=1).modules) == 7
    with pytest.raises(CheckpointError, match=r"layers.0.self_attn.q_proj.lora_A.weight: is missing, though target_"):
        opened(tensors)


REFUSED = [
    ({"peft_type": "IA3"}, r"peft_type is .IA3.: only LORA"),
    ({"bias": "lora_only"}, r"bias is .lora_only.: trained biases"),
    ({"lora_bias": True}, "lora_bias is True"),
    ({"use_dora": True}, r"use_dora is True: magnitudes \(DoRA\)"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out is True"),
    ({"modules_to_save": ["embed_tokens"]}, "modules_to_save is .*embed_tokens.*: only low-rank"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices is"),
    ({"target_parameters": ["experts.w"]}, "target_parameters is"),
    ({"layer_replication": [[0, 2]]}, "layer_replication is"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is .pissa.: it changes the base model"),
    ({"rank_pattern": {"(a+)+q_proj": 4}}, "more than four repetitions, or unbounded ones"),
    ({"rank_pattern": {"(": 4}}, "is no regular expression"),
    ({"r": 0}, "r"),
    ({"r": 64}, "rank 64, more than max_lora_rank 32"),
    ({"r": 5}, r"down_proj.lora_A.weight: shape is \[4, 176\], expected \[5, 176\]"),
    ({"lora_alpha": "x"}, "lora_alpha"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_would_change_the_result_is_refused_by_name(
    model: Path, opened: Open, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        opened(adapter_tensors(model, 4), **config)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


Q_PROJ = f"{PREFIX}model.layers.0.self_attn.q_proj"
STRAYS = [
    ({f"{Q_PROJ}.lora_magnitude_vector.weight": zeros(4)}, "magnitude of DoRA: not computed"),
    ({f"{PREFIX}model.embed_tokens.lora_embedding_A": zeros(4, 4)}, "adapter of an embedding: not computed"),
    ({f"{PREFIX}model.embed_tokens.weight": zeros(4, 4)}, "trained embedding: not computed"),
    ({f"{PREFIX}model.layers.0.mlp.up_proj.bias": zeros(4)}, "bias: not computed"),
    ({f"{PREFIX}lm_head.lora_A.weight": zeros(4, 64)}, "'lm_head' is no module that can be adapted; a layer has"),
    ({f"{PREFIX}model.layers.3.mlp.up_proj.lora_A.weight": zeros(4, 64)}, "layers.3.mlp.up_proj' is no module"),
    ({f"{Q_PROJ}.lora_B.weight": zeros(9, 4)}, r"q_proj.lora_B.weight: shape is \[9, 4\], expected \[128, 4\]"),
    ({f"{Q_PROJ}.lora_B.weight": np.zeros((128, 4), np.int32)}, "dtype is I32, not BF16, F16, F32"),
    ({"something": zeros(1)}, "tensor something: neither lora_A nor lora_B of a module"),
]


@pytest.mark.parametrize(("strays", "reason"), STRAYS, ids=lambda value: str(value)[:60])
def test_tensors_that_are_not_computed_are_refused(model: Path, opened: Open, strays: Tensors, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        opened(adapter_tensors(model, 4) | strays, target_modules="all-linear")


def test_projections_of_a_layer_with_a_state_are_adapted_and_its_convolution_is_refused(tmp_path: Path) -> None:
    write_checkpoint("tiny-qwen3-next", tmp_path / "model")
    linears = list(adaptable(decoder_graph(read_model_spec(tmp_path / "model"))))
    mixer, tensors = "model.layers.0.linear_attn.", adapter_tensors(tmp_path / "model", 4)
    adapter = LoraAdapter(write_adapter(tmp_path / "adapter", tensors), linears, 4)
    found = {name.removeprefix(mixer) for name in adapter.modules if name.startswith(mixer)}
    assert found == {"in_proj_qkvz", "in_proj_ba", "out_proj"}
    tensors[f"{PREFIX}{mixer}conv1d.lora_A.weight"] = zeros(4, 1, 4)
    with pytest.raises(CheckpointError, match=r"conv1d' is no module that can be adapted; a layer has .*in_proj_qkvz"):
        LoraAdapter(write_adapter(tmp_path / "other", tensors), linears, 4)


def test_a_missing_half_is_named(model: Path, opened: Open) -> None:
    tensors = adapter_tensors(model, 4)
    del tensors[f"{Q_PROJ}.lora_B.weight"]
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight: is missing"):
        opened(tensors)


def test_values_must_be_finite(model: Path, opened: Open) -> None:
    name = f"{Q_PROJ}.lora_B.weight"
    adapter = opened(adapter_tensors(model, 4) | {name: np.full((128, 4), np.inf, np.float32)})
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight: has values that are not finite"):
        adapter.array(name)


def test_files_must_be_there_and_safe(model: Path, opened: Open, tmp_path: Path) -> None:
    opened(adapter_tensors(model, 4))
    linears = list(adaptable(decoder_graph(read_model_spec(model))))
    pickled = tmp_path / "pickled"
    shutil.copytree(tmp_path / "adapter", pickled)
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin: is a pickle"):
        LoraAdapter(pickled, linears, 32)
    with pytest.raises(CheckpointError, match=r"adapter_config.json: no such file"):
        LoraAdapter(tmp_path, linears, 32)
    (pickled / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(CheckpointError, match=r"adapter_config.json: .*\br\b"):
        LoraAdapter(pickled, linears, 32)
    cut = tmp_path / "adapter" / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        LoraAdapter(tmp_path / "adapter", linears, 32)
