"""FP8 with scales of blocks, and NVFP4: what a module stands for, by a plain reading of its tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from neuronserve.server.checkpoint.checkpoint import Checkpoint
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.model_source import describe_checkpoint, open_model
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.tensors import linear_modules
from tests.engine.load.conftest import Load
from tests.engine.load.test_group_weights import LOGITS_ERROR, TOKENS, logits
from tools.random_checkpoint.writer import Options, write_checkpoint

Tensors = dict[str, torch.Tensor]
Pack = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]  # a module's tensors, and what they stand for
ASKED = RequestedFormats("bfloat16")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fp8(height: int, width: int, scales: torch.dtype = torch.float32, ending: str = "weight_scale_inv") -> Pack:
    def pack(module: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        n, k = values.shape
        read, stored = torch.empty_like(values), torch.empty(-(-n // height), -(-k // width))
        codes = torch.empty(n, k, dtype=torch.float8_e4m3fn)
        for i in range(stored.shape[0]):
            for j in range(stored.shape[1]):
                at = slice(i * height, (i + 1) * height), slice(j * width, (j + 1) * width)
                scale = (values[at].abs().max() / 448).to(scales)
                if scales == torch.float8_e8m0fnu:
                    scale = (2 * scale.float()).to(scales)
                stored[i, j] = scale.float()
                codes[at] = (values[at] / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
                read[at] = codes[at].float() * scale.float()
        return {f"{module}.weight": codes, f"{module}.{ending}": stored.to(scales)}, read

    return pack


def nvfp4(codes_in: str, whole: str, *, divides: bool) -> Pack:
    def pack(module: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        n, k = values.shape
        factor = values.abs().max() / (6 * 448)
        groups = values.reshape(n, k // 16, 16)
        scales = (groups.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
        stored = (1 / factor).reshape(1) if divides else factor
        steps = scales.float() / stored if divides else scales.float() * stored
        codes = ((groups / steps.clamp(min=1e-12)[..., None])[..., None] - E2M1).abs().argmin(-1)
        read = (E2M1[codes] * steps[..., None]).reshape(n, k)
        flat = codes.reshape(n, k).to(torch.uint8)
        packed = {codes_in: flat[:, ::2] | flat[:, 1::2] << 4, "weight_scale": scales, whole: stored}
        return {f"{module}.{name}": each for name, each in packed.items()} | {
            f"{module}.input_scale": torch.tensor(0.5)
        }, read

    return pack


def per_row(module: str, values: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scales = values.abs().amax(1, keepdim=True) / 448
    codes = (values / scales).to(torch.float8_e4m3fn)
    return {f"{module}.weight": codes, f"{module}.weight_scale": scales}, codes.float() * scales


def deepseek(height: int = 128, width: int = 128, **more: Any) -> dict[str, Any]:
    section = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    return section | {"weight_block_size": [height, width], "modules_to_not_convert": ["lm_head"]} | more


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"type": "float", "symmetric": True, "dynamic": False, **weights}}
    section = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}
    return section | {"ignore": ["lm_head"]}


FOUR = {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
BLOCKS = {"num_bits": 8, "strategy": "block", "block_structure": [64, 96]}
PACKED, DIVIDES = ("weight_packed", "weight_global_scale"), nvfp4("weight_packed", "weight_global_scale", divides=True)
MULTIPLIES = nvfp4("weight", "weight_scale_2", divides=False)
CASES: dict[str, tuple[dict[str, Any], Pack]] = {
    "deepseek": (deepseek(), fp8(128, 128)),
    "deepseek-small": (deepseek(32, 64), fp8(32, 64)),
    "deepseek-powers": (deepseek(48, 32, scale_fmt="ue8m0"), fp8(48, 32, torch.float8_e8m0fnu)),
    "deepseek-bfloat16": (deepseek(7, 20), fp8(7, 20, torch.bfloat16)),
    "fp8-whole": (deepseek() | {"weight_block_size": None}, fp8(1 << 20, 1 << 20)),
    "compressed-blocks": (compressed("float-quantized", **BLOCKS), fp8(64, 96, ending="weight_scale")),
    "compressed-nvfp4": (compressed("nvfp4-pack-quantized", **FOUR), DIVIDES),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, MULTIPLIES),
    "modelopt-blocks": ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, fp8(128, 128, ending="weight_scale")),
    "modelopt-rows": ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, per_row),
}


def write(root: Path, section: dict[str, Any] | None, pack: Pack, shape: str = "tiny-llama") -> None:
    """`root/packed`, and `root/plain` with the values that its codes stand for."""
    for name in ("packed", "plain"):
        write_checkpoint(shape, root / name, Options(dtype="f32"))
    spec, _, _ = describe_checkpoint(root / "plain", ASKED)
    plain = load_file(root / "plain" / "model.safetensors")
    packed = dict(plain)
    for module in linear_modules(spec):
        if module != "lm_head":
            parts, plain[f"{module}.weight"] = pack(module, packed.pop(f"{module}.weight"))
            packed |= parts
    save_file(plain, root / "plain" / "model.safetensors")
    save_file(packed, root / "packed" / "model.safetensors")
    if section is not None:
        path = root / "packed" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": section}))


def opened(directory: Path) -> tuple[Checkpoint, list[str]]:
    spec, _, stored = describe_checkpoint(directory, ASKED)
    return Checkpoint.open(directory, spec, stored), [f"{module}.weight" for module in linear_modules(spec)]


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_a_plain_reading(tmp_path: Path, case: str) -> None:
    write(tmp_path, *CASES[case])
    (packed, names), (plain, _) = opened(tmp_path / "packed"), opened(tmp_path / "plain")
    assert packed.surplus == ()
    for name in names:
        for rows in (None, slice(3, 21), slice(31, 33), slice(5, 5)):
            assert np.array_equal(packed.load(name, rows), plain.load(name, rows))
        assert np.array_equal(packed.load(name, slice(1, 9), slice(4, 40)), plain.load(name)[1:9, 4:40])


@pytest.mark.parametrize("case", ["deepseek-small", "compressed-nvfp4", "modelopt-nvfp4"])
@pytest.mark.parametrize("tp", [1, 2])
def test_logits_are_those_of_the_dequantized_weights(tmp_path: Path, load: Load, case: str, tp: int) -> None:
    write(tmp_path, *CASES[case])
    asked: dict[str, Any] = {"dtype": "float32", "tp": tp}
    want = logits(load(tmp_path / "plain", **asked))
    assert np.array_equal(logits(load(tmp_path / "packed", **asked)), want)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    with torch.no_grad():
        assert np.abs(theirs(torch.tensor([TOKENS])).logits[0].numpy() - want).max() <= 1e-5


@pytest.mark.parametrize(
    ("case", "device", "served"),
    [
        ("deepseek-small", "trn3-gen1", "mxfp8"),
        ("deepseek-small", "inf2.48xlarge", "bfloat16"),
        ("modelopt-nvfp4", "inf2.48xlarge", "int8-groups"),
    ],
)
def test_codes_are_kept_where_a_format_has_them_and_a_note_says_in_what(
    tmp_path: Path, divisible: str, load: Load, case: str, device: str, served: str
) -> None:
    write(tmp_path, *CASES[case], divisible)
    asked = RequestedFormats("bfloat16", may_microscale=served == "mxfp8")
    source = open_model(tmp_path / "packed", asked, 1)
    assert source.notes == (f"files have codes with scales of blocks: served in {served}",)
    want = logits(load(tmp_path / "plain", dtype="float32"))
    got = logits(load(tmp_path / "packed", device=device))
    assert np.abs(got - want).max() <= LOGITS_ERROR * np.abs(want).max()


@pytest.mark.parametrize("is_fused", [False, True])
def test_experts_in_blocks_apart_and_in_one_tensor(tmp_path: Path, is_fused: bool) -> None:
    write(tmp_path, deepseek(32, 32), fp8(32, 32), "tiny-qwen3-moe")
    path = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(path)
    for layer in range(4 if is_fused else 0):
        stem = f"model.layers.{layer}.mlp.experts"
        for ending, own in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            gate, up, down = (
                torch.stack([tensors.pop(f"{stem}.{i}.{name}_proj.{ending}").view(torch.uint8) for i in range(20)])
                for name in ("gate", "up", "down")
            )
            kind = torch.float8_e4m3fn if ending == "weight" else torch.float32
            both = torch.cat([gate, up], 1)
            tensors |= {f"{stem}.gate_up_proj{own}": both.view(kind), f"{stem}.down_proj{own}": down.view(kind)}
    save_file(tensors, path)
    (packed, names), (plain, _) = opened(tmp_path / "packed"), opened(tmp_path / "plain")
    assert packed.surplus == ()
    for name in names:
        assert np.array_equal(packed.load(name), plain.load(name))


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    write(tmp_path, None, MULTIPLIES)
    own = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "packed" / "hf_quant_config.json").write_text(json.dumps(own))
    (packed, names), (plain, _) = opened(tmp_path / "packed"), opened(tmp_path / "plain")
    assert np.array_equal(packed.load(names[0]), plain.load(names[0]))


NAME = "model.layers.1.mlp.up_proj"
Edit = Callable[[Tensors], object]
LIES: dict[str, tuple[str, Edit, str]] = {
    "shape of scales": (
        "deepseek-small",
        lambda t: t.update({f"{NAME}.weight_scale_inv": torch.ones(2, 1)}),
        r"weight_scale_inv.*has shape \[2, 1\], config.json makes it",
    ),
    "codes that are values": (
        "deepseek-small",
        lambda t: t.update({f"{NAME}.weight": t[f"{NAME}.weight"].float()}),
        "has dtype F32, must be F8_E4M3",
    ),
    "no scales": (
        "deepseek-small",
        lambda t: t.pop(f"{NAME}.weight_scale_inv"),
        "dtype F8_E4M3 is not supported",
    ),
    "no factor": ("modelopt-nvfp4", lambda t: t.pop(f"{NAME}.weight_scale_2"), "neither weight_scale_2 nor"),
    "factor of zero": (
        "modelopt-nvfp4",
        lambda t: t.update({f"{NAME}.weight_scale_2": torch.zeros(1)}),
        "is 0.0, must be above 0",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_tensors_that_are_not_as_config_says_are_refused(tmp_path: Path, lie: str) -> None:
    case, edit, message = LIES[lie]
    write(tmp_path, *CASES[case])
    path = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path / "packed")


def test_a_scale_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *CASES["deepseek-small"])
    path = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{NAME}.weight_scale_inv"][1, 0] = torch.inf
    save_file(tensors, path)
    checkpoint, _ = opened(tmp_path / "packed")
    with pytest.raises(CheckpointError, match="NaN, infinite or too large values"):
        checkpoint.load(f"{NAME}.weight")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (deepseek(fmt="e5m2"), "quantization_config.fmt is 'e5m2'"),
        (deepseek(0), r"quantization_config.weight_block_size\[0\] is 0"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "quantization_config.quant_algo is 'NVFP4_AWQ'"),
        (
            compressed("nvfp4-pack-quantized", **FOUR | {"group_size": None}),
            "group_size is None: NVFP4 has groups of 16",
        ),
        (compressed("float-quantized", **BLOCKS, symmetric=False), "symmetric is False"),
        (compressed("nvfp4-pack-quantized", **FOUR) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
    ],
    ids=str,
)
def test_options_that_are_not_read_are_refused_by_name(tmp_path: Path, section: dict[str, Any], message: str) -> None:
    write(tmp_path, section, fp8(128, 128))
    with pytest.raises(CheckpointError, match=message):
        opened(tmp_path / "packed")
