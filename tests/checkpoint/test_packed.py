"""GPTQ, AWQ and compressed-tensors' packed codes: what a module stands for, by packers written from the formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.packed_form import packed_form
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.model_source import describe_checkpoint, open_model
from neuronserve.server.engine.load.shard_reader import ShardReader
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.tensors import linear_modules
from neuronserve.server.placement.matrices import packed_shapes
from neuronserve.server.placement.shard import ShardSpec
from tools.random_checkpoint.writer import Options, write_checkpoint

ASKED = RequestedFormats("bfloat16")
AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)  # column of each place of a word, lowest bits first (AutoAWQ: order_map)
Packed = dict[str, np.ndarray]


def words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [rows, columns] in int32 words of each row, the first code in the lowest bits."""
    per_word = 32 // bits
    parts = codes.reshape(len(codes), -1, per_word).astype(np.uint32) << np.arange(0, 32, bits, dtype=np.uint32)
    return np.bitwise_or.reduce(parts, axis=-1).astype(np.uint32).view(np.int32)


def in_awq_order(codes: np.ndarray) -> np.ndarray:
    return codes.reshape(len(codes), -1, 8)[:, :, AWQ_COLUMNS].reshape(codes.shape)


def gptq(
    module: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray, bits: int
) -> Packed:
    stored = (zeros.astype(np.int64) - 1) % (1 << bits)
    return {
        f"{module}.qweight": np.ascontiguousarray(words(codes, bits).T),
        f"{module}.qzeros": words(stored.T, bits),
        f"{module}.scales": np.ascontiguousarray(scales.T).astype(np.float16),
        f"{module}.g_idx": groups.astype(np.int32),
    }


def awq(module: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray, bits: int) -> Packed:
    del groups
    return {
        f"{module}.qweight": words(in_awq_order(np.ascontiguousarray(codes.T)), bits),
        f"{module}.qzeros": words(in_awq_order(np.ascontiguousarray(zeros.T)), bits),
        f"{module}.scales": np.ascontiguousarray(scales.T).astype(np.float16),
    }


def compressed(
    module: str, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, groups: np.ndarray, bits: int
) -> Packed:
    packed = {
        f"{module}.weight_packed": words(codes, bits),
        f"{module}.weight_scale": scales.astype(np.float16),
        f"{module}.weight_shape": np.array(codes.shape),
        f"{module}.weight_zero_point": np.ascontiguousarray(words(np.ascontiguousarray(zeros.T), bits).T),
    }
    in_order = np.arange(groups.size) // (groups.size // scales.shape[1])
    return packed if np.array_equal(groups, in_order) else packed | {f"{module}.weight_g_idx": groups.astype(np.int32)}


def compressed_section(bits: int, size: int, *, symmetric: bool) -> dict[str, Any]:
    strategy = {"strategy": "channel"} if size == -1 else {"strategy": "group", "group_size": size}
    weights = {"type": "int", "num_bits": bits, "symmetric": symmetric, **strategy}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group}}


def gptq_section(bits: int, size: int, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": False, "desc_act": False, **more}


def awq_section(bits: int, size: int) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": bits, "group_size": size, "zero_point": True, "version": "gemm"}


CASES = [
    ("gptq", gptq_section(4, 16), gptq, 4, 16, "any", False),
    ("gptq-shuffled", gptq_section(4, 16, desc_act=True), gptq, 4, 16, "any", True),
    ("gptq-symmetric", gptq_section(4, 16, sym=True), gptq, 4, 16, "middle", False),
    ("gptq-row", gptq_section(4, -1), gptq, 4, -1, "any", False),
    ("gptq-8", gptq_section(8, 16), gptq, 8, 16, "any", False),
    ("awq", awq_section(4, 16), awq, 4, 16, "any", False),
    ("compressed", compressed_section(4, 16, symmetric=False), compressed, 4, 16, "any", False),
    ("compressed-row-8", compressed_section(8, -1, symmetric=True), compressed, 8, -1, "none", False),
    ("compressed-shuffled", compressed_section(4, 16, symmetric=True), compressed, 4, 16, "none", True),
]


def write_packed(root: Path, case: Any, shape: str = "tiny-llama") -> None:
    """`root/plain` and `root/packed`: the same model, the second with all linear layers but the head packed."""
    _, section, pack, bits, size, zero_kind, is_shuffled = case
    random = np.random.default_rng(7)
    write_checkpoint(shape, root / "plain", Options(dtype="f32"))
    tensors = load_file(root / "plain" / "model.safetensors")
    packed = dict(tensors)
    spec, _, _ = describe_checkpoint(root / "plain", ASKED)
    for module in linear_modules(spec):
        if module == "lm_head":
            continue
        n, k = tensors[f"{module}.weight"].shape
        count = 1 if size == -1 else k // size
        codes, scales = random.integers(0, 1 << bits, (n, k)), random.uniform(0.001, 0.01, (n, count))
        middle = 1 << bits - 1
        zeros = random.integers(0, 1 << bits, (n, count)) if zero_kind == "any" else np.full((n, count), middle)
        groups = np.arange(k) // (k // count)
        if is_shuffled:
            random.shuffle(groups)
        scales = scales.astype(np.float16).astype(np.float32)
        tensors[f"{module}.weight"] = ((codes - zeros[:, groups]) * scales[:, groups]).astype(np.float32)
        del packed[f"{module}.weight"]
        packed |= pack(module, codes, scales, zeros, groups, bits)
        if zero_kind == "none":
            packed.pop(f"{module}.weight_zero_point", None)
    save_file(tensors, root / "plain" / "model.safetensors")
    write_checkpoint(shape, root / "packed", Options(dtype="f32"))
    save_file(
        {name: np.ascontiguousarray(each) for name, each in packed.items()}, root / "packed" / "model.safetensors"
    )
    config = json.loads((root / "packed" / "config.json").read_text())
    (root / "packed" / "config.json").write_text(json.dumps(config | {"quantization_config": section}))


def opened(directory: Path) -> tuple[Checkpoint, Any]:
    spec, _, stored = describe_checkpoint(directory, ASKED)
    return Checkpoint.open(directory, spec, stored), spec


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_packed_modules_are_what_they_stand_for(tmp_path: Path, case: Any) -> None:
    write_packed(tmp_path, case)
    (packed, spec), (plain, _) = opened(tmp_path / "packed"), opened(tmp_path / "plain")
    assert packed.surplus == ()
    for module in linear_modules(spec):
        name = f"{module}.weight"
        for rows in (None, slice(3, 21), slice(8, 9), slice(5, 5)):
            np.testing.assert_allclose(packed.load(name, rows), plain.load(name, rows), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_codes_in_order_are_handed_over_as_they_are(tmp_path: Path, case: Any) -> None:
    _, _, _, bits, size, zero_kind, is_shuffled = case
    write_packed(tmp_path, case)
    checkpoint, _ = opened(tmp_path / "packed")
    name = "model.layers.0.mlp.down_proj.weight"
    assert checkpoint.held_by(name) == ("int4" if bits == 4 else "int8-groups")
    if is_shuffled:
        assert checkpoint.group(name) == 0
        return
    k = checkpoint.shape(name)[1]
    assert checkpoint.group(name) == (k if size == -1 else size)
    columns = slice(0, k) if size == -1 else slice(size, 3 * size)
    found = checkpoint.load_groups(name, slice(2, 9), columns)
    assert (found.offsets is None) == (zero_kind != "any")
    np.testing.assert_allclose(found.values(), checkpoint.load(name, slice(2, 9), columns), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tp", [2, 3])
def test_each_core_gets_its_part_of_packed_matrices(tmp_path: Path, tp: int) -> None:
    write_packed(tmp_path, CASES[1])
    (packed, spec), (plain, _) = opened(tmp_path / "packed"), opened(tmp_path / "plain")
    shard = ShardSpec.of(spec, tp)
    readers = ShardReader(packed, shard), ShardReader(plain, shard)
    for shape in packed_shapes(spec, shard):
        for core in range(tp):
            got, expected = (reader.matrix(shape, core, "float32") for reader in readers)
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


def test_any_format_may_be_asked_for(tmp_path: Path) -> None:
    write_packed(tmp_path, CASES[0])
    served = {None: "int8-groups", "none": None, "int8": "int8", "fp8": "fp8"}  # groups of 16 are none of int4's
    for quantization, expected in served.items():
        formats = open_model(tmp_path / "packed", RequestedFormats("bfloat16", quantization), 1).formats  # type: ignore[arg-type]
        assert formats.quantization == expected


Q0 = "model.layers.0.self_attn.q_proj"


def without(suffix: str) -> Callable[[Packed], object]:
    return lambda tensors: tensors.pop(f"{Q0}.{suffix}")


def changed(suffix: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Packed], object]:
    def edit(tensors: Packed) -> None:
        tensors[f"{Q0}.{suffix}"] = np.ascontiguousarray(change(tensors[f"{Q0}.{suffix}"]))

    return edit


@pytest.mark.parametrize(
    ("edit", "suffix", "words"),
    [
        (without("scales"), ".scales", "missing"),
        (without("qzeros"), ".qzeros", "missing"),
        (changed("qweight", lambda each: each[:-1]), ".qweight", "has shape"),
        (changed("scales", lambda each: each[:, :-8]), ".scales", "has shape"),
        (changed("qzeros", lambda each: each.astype(np.float32)), ".qzeros", "dtype F32"),
        (changed("g_idx", lambda each: each + 1), ".g_idx", "has group"),
        (changed("scales", lambda each: each * np.float16(np.inf)), ".weight", "infinite"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, edit: Callable[[Packed], object], suffix: str, words: str
) -> None:
    write_packed(tmp_path, CASES[0])
    file = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=words) as caught:
        opened(tmp_path / "packed")[0].load(f"{Q0}.weight")
    assert caught.value.tensor == f"{Q0}{suffix}"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (gptq_section(3, 128), "bits is 3"),
        (gptq_section(4, 0), "group_size is 0"),
        (gptq_section(4, 128, checkpoint_format="marlin"), "checkpoint_format is 'marlin'"),
        (gptq_section(4, 128, dynamic={"-:.*": {}}), "dynamic"),
        (awq_section(4, 128) | {"version": "gemv"}, "version is 'gemv'"),
        (awq_section(4, 128) | {"zero_point": False}, "zero_point is False"),
        (compressed_section(4, 16, symmetric=True) | {"kv_cache_scheme": {"a": 1}}, "kv_cache_scheme"),
    ],
)
def test_options_that_are_not_read_are_refused_by_name(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="quantization_config") as caught:
        packed_form(section)
    assert message in str(caught.value)


@pytest.mark.parametrize("method", ["bitsandbytes", "hqq", "eetq", "exl2", "aqlm", "quanto", "fbgemm_fp8"])
def test_other_methods_are_refused_by_name(tmp_path: Path, method: str) -> None:
    write_checkpoint("tiny-llama", tmp_path / "m", Options(dtype="f32"))
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    with pytest.raises(CheckpointError, match=f"quant_method is '{method}'.*gptq, awq"):
        describe_checkpoint(tmp_path / "m", ASKED)
