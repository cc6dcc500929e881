"""Files whose codes are no whole numbers of 4 bits: each matrix in the format that holds it, logits of its values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file, save_file

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.config import CompileConfig
from neuronserve.server.config.formats import RequestedFormats, WeightFormat
from neuronserve.server.engine.load.artifact_writer import compile_model
from neuronserve.server.engine.load.model_source import describe_checkpoint, open_model
from neuronserve.server.engine.load.shard_reader import ShardReader
from neuronserve.server.engine.load.stored_groups import StoredGroups
from neuronserve.server.errors import CheckpointError
from neuronserve.server.kernels.matmul.groups import GroupedRows, dequantize_groups, quantize_groups
from neuronserve.server.models.tensors import linear_modules
from neuronserve.server.placement.matrices import packed_shapes
from neuronserve.server.placement.shard import ShardSpec
from tests.checkpoint.gguf.made import write_pair
from tests.checkpoint.test_fused_experts import as_mxfp4, gpt_oss_of_whole_blocks
from tests.engine.load.conftest import Load
from tests.engine.load.test_group_weights import LOGITS_ERROR, logits
from tools.random_checkpoint.writer import Options, write_checkpoint

ASKED = RequestedFormats("bfloat16")
MICROSCALING = RequestedFormats("bfloat16", may_microscale=True)


def differences(directory: Path, asked: RequestedFormats, tp: int) -> dict[str, tuple[WeightFormat, float]]:
    """Format of each matrix, and the error of the cores' codes against the file's values (NaN = none)."""
    spec, _, stored = describe_checkpoint(directory, asked)
    formats = open_model(directory, asked, tp).formats
    checkpoint, shard = Checkpoint.open(directory, spec, stored), ShardSpec.of(spec, tp)
    reader, groups, found = ShardReader(checkpoint, shard), StoredGroups(checkpoint, shard), {}
    for shape in packed_shapes(spec, shard):
        weights, largest = shape.format_in(formats), 0.0
        for core in range(tp):
            rows = slice(0, shape.n)
            kept = groups.grouped(shape, core, weights, formats.groups, rows) if weights != "bfloat16" else None
            want = reader.matrix(shape, core, "float32", rows)
            far = np.nan if kept is None else np.abs(dequantize_groups(kept, weights) - want).max()
            largest = max(largest, float(far), key=lambda each: np.inf if np.isnan(each) else each)
        found[shape.name] = weights, largest
    return found


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q5_0], ids=lambda kind: kind.name)
def test_codes_of_eight_bits_are_kept(tmp_path: Path, divisible: str, kind: Kind, tp: int) -> None:
    directory = gguf_directory(write_pair(divisible, tmp_path, kind), tmp_path / "cache")
    assert set(differences(directory, ASKED, tp).values()) == {("int8-groups", 0.0)}


def test_values_that_are_no_even_steps_take_eight_bits(tmp_path: Path, divisible: str) -> None:
    """Q5_1 has shifts, which groups of eight bits have not: codes are made from the values."""
    directory = gguf_directory(write_pair(divisible, tmp_path, Kind.Q5_1), tmp_path / "cache")
    found = differences(directory, ASKED, 1)
    assert {weights for weights, _ in found.values()} == {"int8-groups"}
    assert all(np.isnan(far) for _, far in found.values())


def kind_of(name: str) -> Kind:
    """Simulate a file with matrices that are too narrow for its type."""
    endings = {"down_proj.weight": Kind.Q4_0, "o_proj.weight": Kind.F16, "v_proj.weight": Kind.Q8_0}
    return next((kind for ending, kind in endings.items() if name.endswith(ending)), Kind.Q5_0)


def test_each_matrix_has_the_format_that_holds_it(
    tmp_path: Path, divisible: str, load: Load, kernel_cache: str
) -> None:
    directory = gguf_directory(write_pair(divisible, tmp_path, kind_of), tmp_path / "cache")
    found = differences(directory, ASKED, 1)
    expected = {"q_proj": "int8-groups", "o_proj": "bfloat16", "gate_proj": "int8-groups", "down_proj": "int4"}
    assert {name.split(".")[-1]: weights for name, (weights, _) in found.items()} == {
        **expected,
        "lm_head": "int8-groups",
    }
    assert max(far for weights, far in found.values() if weights != "bfloat16") == 0
    want = logits(load(directory, dtype="float32", quantization="none"))
    got = logits(load(directory))
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()
    compile_model(CompileConfig(str(directory), str(tmp_path / "out"), 1, ASKED, kernel_cache), lambda _: None)
    assert np.array_equal(logits(load(tmp_path / "out")), got)


@pytest.mark.parametrize(
    ("kind", "weights"), [(Kind.Q4_0, "int4"), (Kind.Q8_0, "int8-groups"), (Kind.F16, "int8-groups")], ids=str
)
def test_int4_widens_an_output_layer_whose_codes_are_not_four_bits(
    tmp_path: Path, divisible: str, kind: Kind, weights: WeightFormat
) -> None:
    """Codes of the file stay as they are: eight bits for four would only take memory."""
    path = write_pair(divisible, tmp_path, lambda name: kind if name == "lm_head.weight" else Kind.Q4_0)
    directory = gguf_directory(path, tmp_path / "cache")
    found = differences(directory, RequestedFormats("bfloat16", "int4"), 1)
    assert found.pop("lm_head")[0] == weights
    assert {each for each, _ in found.values()} == {"int4"}


def test_a_tied_table_of_codes_is_gathered_and_multiplied(tmp_path: Path, load: Load) -> None:
    path = write_pair(
        "tiny-gemma3", tmp_path, lambda name: Kind.F16 if name.endswith("down_proj.weight") else Kind.Q8_0
    )
    directory = gguf_directory(path, tmp_path / "cache")
    engine = load(directory)
    assert engine.formats.quantization == "int8-groups"
    want = logits(load(directory, dtype="float32", quantization="none"))
    got = logits(engine)
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()


@pytest.mark.parametrize(
    ("device", "weights"), [("trn3-gen1", "mxfp4"), ("inf2.48xlarge", "int8-groups")], ids=["with", "without"]
)
def test_experts_keep_their_mxfp4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Load, device: str, weights: WeightFormat
) -> None:
    """Check that a device with the type keeps the codes, and that eight bits hold their values on any device."""
    directory, tensors = gpt_oss_of_whole_blocks(tmp_path / "model", monkeypatch)
    tensors = as_mxfp4(directory, tensors)
    for name in (name for name in tensors if name.endswith("_scales")):
        tensors[name] -= 4  # weights of a size at which gates are not all clamped
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config |= {"num_experts_per_tok": config["num_local_experts"], "quantization_config": {"quant_method": "mxfp4"}}
    (directory / "config.json").write_text(json.dumps(config))
    found = differences(directory, MICROSCALING if weights == "mxfp4" else ASKED, 1)
    for name, (served, far) in found.items():
        is_expert = ".experts." in name
        assert served == (weights if is_expert else "float32" if "router" in name else "bfloat16")
        assert not is_expert or far == 0
    want = logits(load(directory, dtype="float32", quantization="none"))
    got = logits(load(directory, device=device))
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()


def microscaled(weights: WeightFormat, quantized: GroupedRows) -> dict[str, np.ndarray]:
    """The tensors of a module, as compressed-tensors has them."""
    scales = (np.log2(np.where(quantized.scales, quantized.scales, 1)) + 127).astype(np.uint8)
    if weights == "mxfp8":
        return {"weight": quantized.codes, "weight_scale": scales}
    return {"weight_packed": quantized.codes[:, ::2] | quantized.codes[:, 1::2] << 4, "weight_scale": scales}


def write_microscaled(shape: str, root: Path, weights: WeightFormat, **section: Any) -> None:
    """`root/packed` in codes, and `root/plain` with what they stand for."""
    for name in ("packed", "plain"):
        write_checkpoint(shape, root / name, Options(dtype="f32"))
    spec, _, _ = describe_checkpoint(root / "plain", RequestedFormats("float32"))
    plain = load_file(root / "plain" / "model.safetensors")
    packed = dict(plain)
    for module in linear_modules(spec):
        if module == "lm_head":
            continue
        quantized = quantize_groups(packed.pop(f"{module}.weight"), weights, ASKED.groups)  # type: ignore[arg-type]
        plain[f"{module}.weight"] = dequantize_groups(quantized, weights)
        packed |= {f"{module}.{part}": values for part, values in microscaled(weights, quantized).items()}
    save_file(plain, root / "plain" / "model.safetensors")
    as_float8(packed, root / "packed" / "model.safetensors")
    bits = 8 if weights == "mxfp8" else 4
    arguments = {"num_bits": bits, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    config = json.loads((root / "packed" / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "mxfp8-quantized" if weights == "mxfp8" else "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments | {"dynamic": False} | section}},
        "ignore": ["lm_head"],
    }
    (root / "packed" / "config.json").write_text(json.dumps(config))


def as_float8(tensors: dict[str, np.ndarray], path: Path) -> None:
    """Save; numpy's writer knows no float8: codes in `weight` are given their type in the header."""
    save_file(tensors, path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    for name, entry in header.items():
        if name.endswith(".weight") and entry.get("dtype") == "U8":
            entry["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])


@pytest.mark.parametrize("weights", ["mxfp8", "mxfp4"])
def test_microscaled_checkpoints_keep_their_codes(
    tmp_path: Path, divisible: str, load: Load, weights: WeightFormat
) -> None:
    write_microscaled(divisible, tmp_path, weights)
    found = differences(tmp_path / "packed", MICROSCALING, 2)
    assert found.pop("lm_head")[0] == "bfloat16"
    assert set(found.values()) == {(weights, 0.0)}
    without = differences(tmp_path / "packed", ASKED, 1)
    assert without["model.layers.0.mlp.down_proj"][0] == ("bfloat16" if weights == "mxfp8" else "int8-groups")
    want = logits(load(tmp_path / "plain", dtype="float32"))
    got = logits(load(tmp_path / "packed", device="trn3-gen1"))
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()


@pytest.mark.parametrize(
    ("key", "value"), [("num_bits", 4), ("group_size", 16), ("strategy", "channel"), ("dynamic", True)]
)
def test_what_the_form_cannot_be_is_refused_by_its_key(tmp_path: Path, divisible: str, key: str, value: Any) -> None:
    write_microscaled(divisible, tmp_path, "mxfp8", **{key: value})
    with pytest.raises(CheckpointError, match=f"config_groups.group_0.weights.{key}"):
        open_model(tmp_path / "packed", ASKED, 1)


def test_scales_of_another_shape_are_refused(tmp_path: Path, divisible: str) -> None:
    write_microscaled(divisible, tmp_path, "mxfp4")
    path = tmp_path / "packed" / "model.safetensors"
    tensors, name = load_file(path), "model.layers.1.mlp.up_proj.weight_scale"
    save_file(tensors | {name: tensors[name][:, :-1].copy()}, path)
    with pytest.raises(CheckpointError, match="has shape") as caught:
        open_model(tmp_path / "packed", ASKED, 1)
    assert caught.value.tensor == name
