"""Weights of a directory: every tensor found and checked, slices read and converted, broken checkpoints refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from neuronserve.server.checkpoint import checkpoint as checkpoint_module
from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.names import Names
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import tensor_shapes
from tests.model_specs import with_attention

SIZES = DecoderSizes(2, 12, 20, 4, 2, 6, 30)
SPEC = with_attention(SIZES.spec("Qwen3ForCausalLM", 64), has_qkv_bias=True, has_o_bias=True, qk_norm="head")
TIED = DecoderSizes(1, 12, 20, 4, 2, 6, 30).spec("LlamaForCausalLM", 64, is_tied=True)
EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
GATE = "model.layers.0.mlp.gate_proj.weight"
Tensors = dict[str, np.ndarray]


def tensors_of(spec: ModelSpec, dtype: type = np.float32) -> Tensors:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in tensor_shapes(spec).items()}


def save(directory: Path, tensors: Tensors) -> Path:
    save_file(tensors, directory / "model.safetensors")
    return directory


def save_shards(directory: Path, tensors: Tensors) -> dict[str, str]:
    """Two shards; returns the weight map written to the index."""
    names = list(tensors)
    weight_map = {name: f"model-{1 + i % 2}.safetensors" for i, name in enumerate(names)}
    for shard in sorted(set(weight_map.values())):
        save_file({name: tensors[name] for name in names if weight_map[name] == shard}, directory / shard)
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refusal(directory: Path, spec: ModelSpec = SPEC) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(directory, spec)
    return caught.value


def test_whole_and_sharded_checkpoints_read_the_same(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    (tmp_path / "whole").mkdir()
    (tmp_path / "sharded").mkdir()
    save(tmp_path / "whole", tensors)
    save_shards(tmp_path / "sharded", tensors)
    for kind in ("whole", "sharded"):
        opened = Checkpoint.open(tmp_path / kind, SPEC)
        assert opened.surplus == ()
        for name, expected in tensors.items():
            np.testing.assert_array_equal(opened.load(name), expected)
            assert opened.shape(name) == expected.shape


def test_shards_may_be_links_out_of_the_directory_as_in_the_hub_cache(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    weight_map = save_shards(tmp_path / "blobs", tensors_of(SPEC))
    for shard in set(weight_map.values()):
        (tmp_path / "snapshot" / shard).symlink_to(tmp_path / "blobs" / shard)
    write_index(tmp_path / "snapshot", weight_map)
    assert Checkpoint.open(tmp_path / "snapshot", SPEC).load(GATE).shape == (20, 12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_slices_are_those_of_the_whole_in_both_forms(
    tmp_path: Path, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "CHUNK", 24)  # so that small tensors take several chunks
    tensors = tensors_of(SPEC, dtype)
    opened = Checkpoint.open(save(tmp_path, tensors), SPEC)
    for name, source in tensors.items():
        rows, columns = slice(3, source.shape[0] - 2), slice(2, 9) if source.ndim == 2 else None
        if source.shape[0] < 6:
            rows = slice(0, source.shape[0])
        expected = source[rows] if columns is None else source[rows, columns]
        got = opened.load(name, rows, columns)
        assert got.dtype == np.float32
        assert got.flags.c_contiguous
        assert got.flags.writeable
        np.testing.assert_array_equal(got, expected.astype(np.float32))
        bits = opened.load_bf16(name, rows, columns)
        assert bits.flags.c_contiguous
        np.testing.assert_array_equal(bits, expected.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert (
        opened.dtype(GATE) == {2: "BF16" if dtype is ml_dtypes.bfloat16 else "F16", 4: "F32"}[np.dtype(dtype).itemsize]
    )


def test_ties_go_to_the_even_bfloat16(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    half = 2.0**-8  # of the step between 1 and 2
    tensors[GATE][0, :5] = [1 + half, 1 + 3 * half, -1 - half, 1 + half + 2.0**-23, 2.0**-134]
    bits = Checkpoint.open(save(tmp_path, tensors), SPEC).load_bf16(GATE)[0, :5]
    assert [hex(each) for each in bits.tolist()] == ["0x3f80", "0x3f82", "0xbf80", "0x3f81", "0x0"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_in_the_slice_that_has_them(
    tmp_path: Path, dtype: type, bad: float
) -> None:
    tensors = tensors_of(SPEC, dtype)
    tensors[GATE][11, 5] = bad
    opened = Checkpoint.open(save(tmp_path, tensors), SPEC)
    for load in (opened.load, opened.load_bf16):
        load(GATE, slice(0, 11))
        load(GATE, None, slice(6, 12))
        with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor .*gate_proj.*NaN") as caught:
            load(GATE, slice(8, 20))
        assert caught.value.tensor == GATE


def test_nan_whose_bits_are_all_ones_is_not_rounded_to_a_number(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    tensors[GATE].view(np.uint32)[0, 0] = 0xFFFFFFFF
    with pytest.raises(CheckpointError):
        Checkpoint.open(save(tmp_path, tensors), SPEC).load_bf16(GATE)


def test_finite_values_beyond_bfloat16_are_refused_there_only(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    tensors[GATE][0, 0] = np.finfo(np.float32).max
    opened = Checkpoint.open(save(tmp_path, tensors), SPEC)
    assert opened.load(GATE)[0, 0] == np.finfo(np.float32).max
    with pytest.raises(CheckpointError, match="too large"):
        opened.load_bf16(GATE)


@pytest.mark.parametrize("name", list(tensor_shapes(SPEC)))
def test_any_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = tensors_of(SPEC)
    del tensors[name]
    error = refusal(save(tmp_path, tensors))
    assert error.tensor == name
    assert "missing" in error.reason


@pytest.mark.parametrize("name", list(tensor_shapes(SPEC)))
def test_any_wrong_shape_is_named_with_both_shapes(tmp_path: Path, name: str) -> None:
    tensors = tensors_of(SPEC)
    tensors[name] = np.concatenate([tensors[name], tensors[name][:1]])
    error = refusal(save(tmp_path, tensors))
    assert error.tensor == name
    assert str(list(tensors[name].shape)) in error.reason
    assert str(list(tensor_shapes(SPEC)[name])) in error.reason


def test_other_dtypes_are_refused_by_name(tmp_path: Path) -> None:
    tensors = tensors_of(SPEC)
    tensors[GATE] = tensors[GATE].astype(ml_dtypes.float8_e4m3fn)
    error = refusal(save(tmp_path, tensors))
    assert (error.tensor, "F8_E4M3" in error.reason) == (GATE, True)


def test_known_extras_are_passed_over_and_unknown_ones_noted(tmp_path: Path) -> None:
    extras = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32)}
    surplus = {"model.layers.9.mlp.gate_proj.weight": np.ones(3, np.float32)}
    assert Checkpoint.open(save(tmp_path, tensors_of(SPEC) | extras | surplus), SPEC).surplus == tuple(surplus)


def test_tied_output_layer_may_be_absent_or_equal_but_not_different(tmp_path: Path) -> None:
    tensors = tensors_of(TIED)
    assert LM_HEAD not in tensors
    assert Checkpoint.open(save(tmp_path, tensors), TIED).surplus == ()
    tensors[LM_HEAD] = tensors[EMBEDDING].copy()
    assert Checkpoint.open(save(tmp_path, tensors), TIED).surplus == ()
    tensors[LM_HEAD][-1, -1] += 1
    assert refusal(save(tmp_path, tensors), TIED).tensor == LM_HEAD
    tensors[LM_HEAD] = np.ones((), np.float32)
    assert refusal(save(tmp_path, tensors), TIED).tensor == LM_HEAD


def test_names_may_leave_out_what_comes_before_those_of_a_model_with_its_output_layer(tmp_path: Path) -> None:
    tensors = tensors_of(TIED)
    bare = {name.removeprefix("model."): values for name, values in tensors.items()}
    for head in ({}, {LM_HEAD: tensors[EMBEDDING].copy()}):
        opened = Checkpoint.open(save(tmp_path, bare | head), TIED)
        assert opened.surplus == ()
        for name, expected in tensors.items():
            np.testing.assert_array_equal(opened.load(name), expected)
    del bare["norm.weight"]
    assert refusal(save(tmp_path, bare), TIED).tensor == "model.norm.weight"


def test_old_names_and_leftovers_of_a_family_are_known(tmp_path: Path) -> None:
    names = Names.of({"model": "gpt_neox"}, "gpt_neox.", (".attention.bias",))
    spec = replace(SPEC, names=replace(names, old_names=(("embed_out.weight", "lm_head.weight"),)))
    tensors = tensors_of(spec)
    old = {name.replace("lm_head", "embed_out"): values for name, values in tensors.items()}
    bare = {name.removeprefix("gpt_neox."): values for name, values in old.items()}
    for stored in (tensors, old, bare):
        opened = Checkpoint.open(save(tmp_path, stored | {"layers.0.attention.bias": np.ones(3, np.float32)}), spec)
        assert opened.surplus == ()
        for name, expected in tensors.items():
            np.testing.assert_array_equal(opened.load(name), expected)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "consolidated.00.pth"])
def test_pickled_weights_are_refused_by_name_and_never_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    reason = refusal(tmp_path).reason
    assert name in reason
    assert "pickled" in reason


def test_pickles_beside_safetensors_are_nobodys_business(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert Checkpoint.open(save(tmp_path, tensors_of(SPEC)), SPEC).surplus == ()


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    assert "neither model.safetensors nor" in refusal(tmp_path).reason


def edit(weight_map: dict[str, str], name: str, shard: object) -> dict[str, object]:
    return weight_map | {name: shard}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: edit(m, GATE, "../model-1.safetensors"), "'../model-1.safetensors' is not the name"),
        (lambda m: edit(m, GATE, "/etc/x.safetensors"), "'/etc/x.safetensors' is not the name"),
        (lambda m: edit(m, GATE, "a\\..\\x.safetensors"), "is not the name"),
        (lambda m: edit(m, GATE, "x\0.safetensors"), "is not the name"),
        (lambda m: edit(m, GATE, "pytorch_model.bin"), "'pytorch_model.bin' is not the name"),
        (lambda m: edit(m, GATE, 3), f"weight_map.{GATE} is 3: expected `str`"),
        (lambda m: edit(m, GATE, "model-9.safetensors"), "model-9.safetensors: no such file"),
        (lambda m: edit(m, "model.extra", "model-1.safetensors"), "model-1.safetensors: tensor model.extra: missing"),
        (lambda m: edit(m, "\x1b[0m", "model-1.safetensors"), "has a tensor named"),
        (list, "weight_map is ['model.embed_tokens.weight', "),
        (lambda m: None, "weight_map is None: expected `object`"),
    ],
)
def test_indexes_that_lie_are_refused(tmp_path: Path, change: Callable[[dict[str, str]], object], named: str) -> None:
    write_index(tmp_path, change(save_shards(tmp_path, tensors_of(SPEC))))
    assert named in str(refusal(tmp_path))


def test_truncated_shard_is_named(tmp_path: Path) -> None:
    save_shards(tmp_path, tensors_of(SPEC))
    shard = tmp_path / "model-2.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    error = refusal(tmp_path)
    assert error.file == str(shard)
    assert "truncated" in error.reason
