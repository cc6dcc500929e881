"""Checkpoints in compressed-tensors form: their own codes and scales are served, and what is not served is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.checkpoint.compressed_tensors import read_stored_quantization
from neuronserve.server.config import CompileConfig
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.artifact_writer import compile_model
from neuronserve.server.engine.load.model_source import open_model
from neuronserve.server.engine.load.shard_reader import ShardReader
from neuronserve.server.errors import CheckpointError, SettingsError
from neuronserve.server.kernels.matmul.quantize import dequantize_rows, stored_rows
from neuronserve.server.models.names import LLAMA
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.matrices import packed_shapes
from neuronserve.server.placement.shard import ShardSpec
from neuronserve.server.typed_json import JsonError
from tests.checkpoint.compressed import Kind, quantization_config, write_both

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
ASKED = RequestedFormats("bfloat16")
SPEC = DecoderSizes(2, 64, 128, 4, 2, 16, 300).spec("LlamaForCausalLM", 512)
TIED = DecoderSizes(2, 64, 128, 4, 2, 16, 300).spec("LlamaForCausalLM", 512, is_tied=True)
Q0 = "model.layers.0.self_attn.q_proj"
Edit = Callable[[Any], object]


def stored(section: Any, spec: ModelSpec = SPEC) -> Any:
    return read_stored_quantization({"quantization_config": section}, spec)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    ("kind", "strategy", "ignore", "tolerance"),
    [
        ("int", "channel", ("lm_head",), 0.03),  # activations are quantized too
        ("float", "channel", ("lm_head", Q0), 0.02),  # bfloat16 activations; 240 to 448 loses nothing but tiny codes
        ("float", "tensor", (), 0.02),
    ],
)
@pytest.mark.parametrize("shape", ["tiny-qwen2", "tiny-llama"])
def test_logits_are_near_those_of_the_dequantized_weights(
    tmp_path: Path,
    engine_logits: Callable[..., np.ndarray],
    shape: str,
    kind: Kind,
    strategy: str,
    ignore: tuple[str, ...],
    tolerance: float,
    tp: int,
) -> None:
    write_both(shape, tmp_path, kind, strategy, ignore)
    expected = engine_logits(tmp_path / "plain", "float32", 1, TOKENS)
    got = engine_logits(tmp_path / "packed", "bfloat16", tp, TOKENS)
    assert np.abs(got - expected).mean() <= tolerance * np.abs(expected).mean()


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("kind", ["int", "float"])
@pytest.mark.parametrize("shape", ["tiny-qwen2", "tiny-odd", "tiny-llama"])
def test_each_core_gets_its_rows_and_columns_of_codes_and_the_scales_of_its_rows(
    tmp_path: Path, shape: str, kind: Kind, tp: int
) -> None:
    write_both(shape, tmp_path, kind)
    spec = open_model(tmp_path / "plain", ASKED, tp).spec
    section = json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
    quantized = stored(section, spec)
    shard = ShardSpec.of(spec, tp)
    packed = ShardReader(Checkpoint.open(tmp_path / "packed", spec, quantized), shard)
    plain = ShardReader(Checkpoint.open(tmp_path / "plain", spec), shard)
    matrices = list(packed_shapes(spec, shard))[-5:]
    for matrix in matrices if not spec.is_tied else matrices[:-1]:
        assert packed.is_quantized(matrix)
        assert not plain.is_quantized(matrix)
        for core in range(tp):
            expected = plain.matrix(matrix, core, "float32")
            np.testing.assert_array_equal(packed.matrix(matrix, core, "float32"), expected)
            rows = stored_rows(*packed.codes(matrix, core), quantized.quantization)
            values = dequantize_rows(rows, quantized.quantization)
            if kind == "int":
                np.testing.assert_array_equal(values, expected)
                np.testing.assert_array_equal(rows.sums, rows.codes.view(np.int8).sum(axis=1, dtype=np.int32))
            else:  # what is below the smallest normal number may be lost
                assert (np.abs(values - expected) <= rows.scales[:, None] * 2.0**-7).all()


@given(hnp.arrays(np.uint8, (3, 64)).filter(lambda codes: not ((codes & 0x7F) == 0x7F).any()))
def test_float8_rows_keep_every_value_that_neuron_has(codes: np.ndarray) -> None:
    scales = np.array([1, 0.5, 3], np.float32)
    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales[:, None]
    rows = stored_rows(codes, scales, "fp8")
    got = dequantize_rows(rows, "fp8")
    assert ((rows.codes & 0x7F) <= 0x77).all()
    is_beyond = (np.abs(expected) > 240 * scales[:, None]).any(axis=1)
    np.testing.assert_array_equal(rows.scales, np.where(is_beyond, 2 * scales, scales))
    is_normal = np.abs(expected) >= rows.scales[:, None] * 2.0**-6
    np.testing.assert_array_equal(got[is_normal], expected[is_normal])
    assert (np.abs(got - expected) <= rows.scales[:, None] * 2.0**-7).all()


class TestFormats:
    def test_each_form_has_a_format(self) -> None:
        weight_only = quantization_config("int")
        weight_only["config_groups"]["group_0"]["input_activations"] = None
        found = [stored(section).quantization for section in (quantization_config("int"), weight_only)]
        assert found == ["int8", "int8-weight-only"]
        assert (stored(quantization_config("float")).quantization, stored(None)) == ("fp8", None)

    @pytest.mark.parametrize(
        ("entries", "left_out"),
        [
            ((), 0),
            (("lm_head",), 1),
            (("language_model.lm_head", f"language_model.{Q0}", "vision_tower.patch_conv"), 2),
            (("re:.*lm_head",), 1),
            ((Q0, "re:.*down_proj$"), 3),
            ((r"re:model\.layers\.\d+\.self_attn\.(q|k)_proj",), 4),
            (("re:.*layers.1.*",), 7),
            (("self_attn", "q_proj", "re:self_attn"), 0),  # names are whole, patterns begin at the beginning
        ],
    )
    def test_ignored_modules_are_plain(self, entries: tuple[str, ...], left_out: int) -> None:
        found = stored(quantization_config("int", entries))
        assert len(found.left_out) == left_out
        assert len(found.modules) == 15 - left_out
        assert not found.modules & set(found.left_out)

    def test_a_tied_output_layer_is_the_plain_embedding(self) -> None:
        assert stored(quantization_config("int", ()), TIED).left_out == ("lm_head",)

    def test_codes_of_matrices_that_are_stored_transposed_are_refused(self) -> None:
        spec = replace(SPEC, names=replace(LLAMA, is_transposed=True))
        with pytest.raises(JsonError, match=r"not supported where weights are stored \[inputs, outputs\]"):
            stored(quantization_config("int", ()), spec)

    def test_a_fused_matrix_with_one_plain_part_is_plain(self, tmp_path: Path) -> None:
        write_both("tiny-llama", tmp_path, "int", ignore=("lm_head", Q0))
        formats = open_model(tmp_path / "packed", ASKED, 1).formats
        modules = [Q0.replace("q_proj", f"{x}_proj") for x in "qkv"]
        assert (formats.of(*modules), formats.of("model.layers.1.self_attn.q_proj")) == ("bfloat16", "int8")

    def test_asking_for_another_format_names_both(self, tmp_path: Path) -> None:
        write_both("tiny-llama", tmp_path, "int")
        with pytest.raises(SettingsError, match=r"quantization is fp8: .* is quantized to int8"):
            open_model(tmp_path / "packed", RequestedFormats("bfloat16", "fp8"), 1)

    def test_asking_for_what_it_is_and_for_less(self, tmp_path: Path) -> None:
        write_both("tiny-llama", tmp_path, "int")
        formats = open_model(tmp_path / "packed", RequestedFormats("float32", "int8", ("o_proj",)), 1).formats
        assert (formats.of("model.layers.0.self_attn.o_proj"), formats.of(Q0)) == ("float32", "int8")


def group(**changes: Any) -> Edit:
    return lambda section: section["config_groups"]["group_0"].update(changes)


def part(name: str, **changes: Any) -> Edit:
    return lambda section: section["config_groups"]["group_0"][name].update(changes)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (
            lambda s: s.update(quant_method="hqq"),
            "quantization_config.quant_method is 'hqq': served are",
        ),
        (
            lambda s: s.update(format="marlin-24"),
            "config.format is 'marlin-24': with int only",
        ),
        (lambda s: s.update(quantization_status="frozen"), "quantization_status is 'frozen': expected 'compressed'"),
        (
            lambda s: s.update(kv_cache_scheme={"num_bits": 8}),
            "kv_cache_scheme is {'num_bits': 8}: not supported",
        ),
        (
            lambda s: s.update(sparsity_config={"format": "sparse-24-bitmask"}),
            "sparsity_config.format is 'sparse-24-bitmask': exp",
        ),
        (lambda s: s["config_groups"].update(group_1={}), "expected `object` of length <= 1"),
        (lambda s: s.update(config_groups={}), "config_groups is {}: expected `object` of length >= 1"),
        (
            group(targets=["re:.*q_proj"]),
            "config_groups.group_0.targets is ['re:.*q_proj']: only ['Linear'] is",
        ),
        (group(weights=None), "config_groups.group_0.weights is None: expected `object`"),
        (group(output_activations={"num_bits": 8}), "group_0.output_activations is {'num_bits': 8}: not supported"),
        (group(format="marlin-24"), "group_0.format is 'marlin-24': with int only"),
        (part("weights", num_bits=4), "weights.num_bits is 4: expected 8"),
        (part("weights", num_bits=8.0), "weights.num_bits is 8.0: expected `int`"),
        (part("weights", symmetric=False), "weights.symmetric is False: only True is supported"),
        (
            part("weights", strategy="group", group_size=128),
            "weights.strategy is 'group': expected 'channel' or",
        ),
        (part("weights", group_size=128), "weights.group_size is 128: scales are per channel"),
        (part("weights", dynamic=True), "weights.dynamic is True: only False is supported"),
        (part("weights", type="uint"), "weights.type is 'uint': expected 'int' or 'float'"),
        (part("input_activations", dynamic=False), "input_activations.dynamic is False: only True is supported"),
        (part("input_activations", strategy="tensor"), "input_activations.strategy is 'tensor': expected 'token'"),
        (part("input_activations", type="float"), "input_activations.type is 'float': only 'int' is supported"),
        (part("input_activations", symmetric=False), "input_activations.symmetric is False: only True"),
        (lambda s: s.update(ignore="lm_head"), "ignore is 'lm_head': expected `array | null`"),
        (lambda s: s.update(ignore=["re:(a+)+$"]), "ignore is 're:(a+)+$': too complex a pattern"),
        (lambda s: s.update(ignore=["re:" + ".*" * 20]), "config.ignore is 're:.*.*"),
        (lambda s: s.update(ignore=["re:(lm"]), "ignore is 're:(lm': not a pattern: "),
    ],
)
def test_what_is_not_served_is_refused_by_name(edit: Edit, named: str) -> None:
    section = quantization_config("int")
    edit(section)
    with pytest.raises(JsonError) as refusal:
        stored(section)
    assert named in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop(f"{Q0}.weight_scale"), f"tensor {Q0}.weight_scale: missing"),
        (lambda t: t.update({f"{Q0}.weight_scale": np.ones((3, 1), np.float32)}), "has shape [3, 1], must be ["),
        (lambda t: t.update({f"{Q0}.weight_scale": np.ones(1, np.int32)}), "dtype I32 is not supported"),
        (lambda t: t.update({f"{Q0}.weight_scale": np.full(1, np.nan, np.float32)}), "NaN, infinite"),
        (lambda t: t.update({f"{Q0}.weight_scale": np.full(1, -1, np.float32)}), "has a negative scale"),
        (
            lambda t: t.update({f"{Q0}.weight": t[f"{Q0}.weight"].astype(np.float32)}),
            "has dtype F32, quantization_config makes it F8_E4M3 as it is not in its ignore list",
        ),
        (lambda t: t[f"{Q0}.weight"].view(np.uint8).__setitem__((0, 0), 0xFF), f"tensor {Q0}.weight: NaN"),
        (lambda t: t.update({"lm_head.weight": t[f"{Q0}.weight"]}), "lm_head.weight: has shape"),
    ],
)
def test_tensors_that_are_not_as_config_says_are_refused(
    tmp_path: Path, pytestconfig: pytest.Config, change: Edit, named: str
) -> None:
    write_both("tiny-llama", tmp_path, "float", edit=change)
    kernels = str(pytestconfig.cache.mkdir("kernels"))
    config = CompileConfig(str(tmp_path / "packed"), str(tmp_path / "out"), 1, ASKED, kernels)
    with pytest.raises(CheckpointError) as refusal:
        compile_model(config, lambda _: None)
    assert named in str(refusal.value)
