"""Compiled models: the same bytes and logits as the checkpoint gives, and nothing damaged or mistaken is served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuronserve.cli import main
from neuronserve.server.checkpoint.artifact import core_file
from neuronserve.server.checkpoint.manifest import MANIFEST
from neuronserve.server.config import CompileConfig
from neuronserve.server.config.formats import RequestedFormats, WeightGroups
from neuronserve.server.device.buckets import BucketLists
from neuronserve.server.device.core import NeuronCore
from neuronserve.server.engine.load.artifact_writer import compile_model
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.engine.load.model_source import open_model
from neuronserve.server.engine.load.weights import ModelWeights, PackedMatrix, PackedShard, WeightLoader
from neuronserve.server.errors import CheckpointError, SettingsError
from neuronserve.server.placement.shard import ShardSpec
from tests.depth import representative
from tests.engine.config import engine_config
from tools.random_checkpoint.shapes import TINY
from tools.random_checkpoint.writer import Options, write_checkpoint

INT8 = RequestedFormats("bfloat16", "int8")
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
Compile = Callable[..., Path]


def silent(_: str) -> None:
    """No progress lines."""


@pytest.fixture(scope="module")
def kernels(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.cache.mkdir("kernels"))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for shape in TINY:
        write_checkpoint(shape, root / shape)
    return root


@pytest.fixture
def compiled(checkpoints: Path, kernels: str, tmp_path: Path) -> Compile:
    def compiled(shape: str = "tiny-qwen2", tp: int = 2, asked: RequestedFormats = INT8) -> Path:
        compile_model(CompileConfig(str(checkpoints / shape), str(tmp_path / "out"), tp, asked, kernels), silent)
        return tmp_path / "out"

    return compiled


def weights_of(directory: Path, asked: RequestedFormats, tp: int) -> ModelWeights:
    model = open_model(directory, asked, tp)
    cores = [NeuronCore(core) for core in range(tp)]
    return WeightLoader(model.source, model.spec, ShardSpec.of(model.spec, tp), cores, model.formats).load(silent)


def buffers(value: Any) -> list[bytes | None]:
    """Every buffer of a tree of weights, in order."""
    if isinstance(value, tuple | list):
        return [found for item in value for found in buffers(item)]
    if isinstance(value, ModelWeights):
        return buffers([value.embedding, *value.tables.values(), *value.matrices.values(), *value.vectors.values()])
    if isinstance(value, PackedMatrix):
        return buffers([value.shards, value.biases])
    if isinstance(value, PackedShard):
        return buffers([value.tiles, value.scales, value.sums])
    return [None if value is None else value.bytes.tobytes()]


def logits(directory: Path, asked: RequestedFormats, tp: int, kernels: str) -> np.ndarray:
    config = engine_config(
        directory,
        kernels,
        device="inf2.48xlarge",
        tensor_parallel_size=tp,
        dtype=asked.dtype,
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        num_blocks_override=6,
        quantization=asked.quantization,
    )
    engine = load_engine(config, silent)
    try:
        return engine.runner.logits(TOKENS)
    finally:
        engine.runner.close()


@pytest.mark.parametrize("tp", representative([1, 2, 3], 2))
@pytest.mark.parametrize(
    "shape",
    representative(
        ["tiny-qwen2", "tiny-qwen3", "tiny-odd", "tiny-mistral", "tiny-gpt2", "tiny-neox"],
        *("tiny-qwen2", "tiny-odd", "tiny-gpt2"),
    ),
)
@pytest.mark.parametrize(
    "asked",
    [
        RequestedFormats("bfloat16"),
        RequestedFormats("float32"),
        RequestedFormats("bfloat16", "int8", ("lm_head", "layers.0.mlp")),
        RequestedFormats("bfloat16", "fp8"),
        RequestedFormats("bfloat16", "int4", (), WeightGroups(64, is_symmetric=False)),
        RequestedFormats("bfloat16", "mxfp4"),
    ],
    ids=lambda asked: f"{asked.dtype}-{asked.quantization}",
)
def test_memory_is_the_same_to_the_byte(
    checkpoints: Path, compiled: Compile, shape: str, tp: int, asked: RequestedFormats
) -> None:
    directory = compiled(shape, tp, asked)
    ours, theirs = (buffers(weights_of(path, asked, tp)) for path in (directory, checkpoints / shape))
    assert ours == theirs
    assert any(found and any(found) for found in ours)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("quantization", representative([None, "int8", "fp8", "int4"], None, "int8", "int4"))
def test_logits_are_the_same_to_the_bit(
    checkpoints: Path, compiled: Compile, kernels: str, tp: int, quantization: Any
) -> None:
    asked = RequestedFormats("bfloat16", quantization)
    expected = logits(checkpoints / "tiny-qwen2", asked, tp, kernels)
    directory = compiled("tiny-qwen2", tp, asked)
    np.testing.assert_array_equal(logits(directory, asked, tp, kernels), expected)
    np.testing.assert_array_equal(logits(directory, RequestedFormats("bfloat16"), tp, kernels), expected)
    assert np.isfinite(expected).all()


def test_the_directory_holds_what_a_server_needs_and_no_checkpoint(checkpoints: Path, compiled: Compile) -> None:
    names = {path.name for path in compiled(tp=2).iterdir()}
    source = {path.name for path in (checkpoints / "tiny-qwen2").iterdir()}
    assert names == source - {"model.safetensors"} | {MANIFEST, core_file(0), core_file(1)}


def test_the_files_lie_as_the_memory_does(compiled: Compile) -> None:
    directory = compiled(tp=2)
    manifest = json.loads((directory / MANIFEST).read_text())
    for core, file in enumerate(manifest["files"]):
        assert (directory / core_file(core)).stat().st_size == file["num_bytes"]
        end = 0
        for entry in file["entries"].values():
            assert entry["offset"] == -(-end // 64) * 64
            end = entry["offset"] + entry["num_bytes"]
        assert end == file["num_bytes"]


@pytest.mark.parametrize(
    ("asked", "tp", "both"),
    [
        (RequestedFormats("bfloat16", "int8"), 1, ("tensor_parallel_size is 1", "for 2")),
        (RequestedFormats("bfloat16", "fp8"), 2, ("quantization is fp8", "for int8")),
        (RequestedFormats("bfloat16", "none"), 2, ("quantization is none", "for int8")),
        (RequestedFormats("bfloat16", "int8", (), WeightGroups(64)), 2, ("groups is", "size=64", "size=32")),
        (RequestedFormats("float32", "int8"), 2, ("dtype is float32", "for bfloat16")),
        (RequestedFormats("bfloat16", None, ("lm_head",)), 2, ("modules_to_not_convert is lm_head", "with none")),
    ],
)
def test_asking_for_something_else_names_both_values(
    compiled: Compile, asked: RequestedFormats, tp: int, both: tuple[str, str]
) -> None:
    directory = compiled(tp=2)
    with pytest.raises(SettingsError) as refusal:
        open_model(directory, asked, tp)
    assert all(part in str(refusal.value) for part in both)


@pytest.mark.parametrize("place", [0, 12345, -1])
def test_one_flipped_bit_is_found_with_its_file_and_entry(compiled: Compile, place: int) -> None:
    directory = compiled(tp=2)
    path = directory / core_file(1)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    place %= len(content)
    entries = json.loads((directory / MANIFEST).read_text())["files"][1]["entries"]
    hit = next(n for n, e in entries.items() if e["offset"] <= place < e["offset"] + e["num_bytes"])
    with pytest.raises(CheckpointError, match="is damaged: SHA-256") as refusal:
        weights_of(directory, RequestedFormats("bfloat16"), 2)
    assert (refusal.value.file, refusal.value.tensor) == (str(path), hit)


def test_a_truncated_file_is_found_before_anything_is_read(compiled: Compile) -> None:
    directory = compiled(tp=1)
    path = directory / core_file(0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"tensor lm_head sums: has .* bytes, compiled with .*: truncated"):
        open_model(directory, RequestedFormats("bfloat16"), 1)


def test_a_missing_file_is_named(compiled: Compile) -> None:
    directory = compiled(tp=2)
    (directory / core_file(1)).unlink()
    with pytest.raises(CheckpointError, match=r"core-1\.weights: cannot be read: No such file"):
        open_model(directory, RequestedFormats("bfloat16"), 2)


def edit_first_entry(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda manifest: manifest["files"][0]["entries"]["lm_head"].update(changes)


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda m: m.update(format_version=1), "format_version is 1: this server reads 4"),
        (lambda m: m.pop("format_version"), "format_version is missing"),
        (lambda m: m["model"].update(num_layers=1), "model differs"),
        (lambda m: m["model"].update(norm_offset=1.0), "model differs"),
        (lambda m: m["padded_sizes"].update(hidden=128), "padded_sizes differs"),
        (lambda m: m.update(tensor_parallel_size=2), "padded_sizes differs"),
        (lambda m: m.update(config_sha256="0"), "config.json: differs"),
        (
            lambda m: m.update(quantization="int3"),
            "quantization is 'int3': expected 'int8' or 'int8-weight-only' or 'int8-groups' or",
        ),
        (lambda m: m.update(dtype="float16"), "dtype is 'float16': expected 'bfloat16' or 'float32'"),
        (lambda m: m.update(modules_to_not_convert="x"), "modules_to_not_convert is 'x': expected `array`"),
        (lambda m: m.update(files=[]), "files has 0 files, one for each of 1 cores"),
        (lambda m: m.update(buckets={}), "buckets.context_encoding is missing"),
        (
            lambda m: m["buckets"].update(context_encoding=[0, 128]),
            "buckets.context_encoding[0] is 0: expected `int` >=",
        ),
        (lambda m: m.update(files=[3]), "files[0] is 3: expected `object`"),
        (lambda m: m["files"][0].pop("entries"), "files[0].entries is missing"),
        (lambda m: m["files"][0]["entries"].pop("lm_head"), "tensor lm_head: has no such entry"),
        (lambda m: m["buckets"].pop("context_encoding"), "buckets.context_encoding is missing"),
        (
            lambda m: m["buckets"].update(token_generation=[]),
            "buckets.token_generation is []: expected `array` of length >= 1",
        ),
        (
            lambda m: m["buckets"].update(token_generation=[2, True]),
            "buckets.token_generation[1] is True: expected `int`",
        ),
        (
            lambda m: m["buckets"].update(context_encoding=[256, 128]),
            "buckets.context_encoding is [256, 128]: must rise to at most",
        ),
        (
            lambda m: m["buckets"].update(token_generation=[1 << 40]),
            "buckets.token_generation is [1099511627776]: must rise to at most",
        ),
        (edit_first_entry(offset=-64), "files[0].entries.lm_head.offset is -64: expected `int` >= 0"),
        (edit_first_entry(offset=1 << 43), "files[0].entries.lm_head.offset is 8796093022208: the file has"),
        (edit_first_entry(num_bytes=1 << 43), "files[0].entries.lm_head.num_bytes is 8796093022208: the file has"),
        (edit_first_entry(num_bytes=64), "tensor lm_head: has 64 bytes, the core takes"),
        (edit_first_entry(offset=64), "tensor lm_head: is damaged"),
        (edit_first_entry(sha256="0"), "tensor lm_head: is damaged"),
        (edit_first_entry(sha256=None), "files[0].entries.lm_head.sha256 is None: expected `str`"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    compiled: Compile, edit: Callable[[dict[str, Any]], object], named: str
) -> None:
    directory = compiled(tp=1)
    manifest = json.loads((directory / MANIFEST).read_text())
    edit(manifest)
    (directory / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError) as refusal:
        weights_of(directory, RequestedFormats("bfloat16"), 1)
    assert named in str(refusal.value)


def test_a_manifest_that_holds_more_of_the_model_is_read(compiled: Compile) -> None:
    directory = compiled(tp=1)
    manifest = json.loads((directory / MANIFEST).read_text())
    manifest["model"] |= {"rms_norm_eps": 1e-6, "windows": [], "rope": {"theta": 1e4}}  # as older releases wrote it
    (directory / MANIFEST).write_text(json.dumps(manifest))
    assert weights_of(directory, RequestedFormats("bfloat16"), 1).matrices


def test_buckets_are_in_the_manifest_and_served(checkpoints: Path, kernels: str, tmp_path: Path) -> None:
    config = CompileConfig(
        str(checkpoints / "tiny-qwen2"), str(tmp_path / "out"), 1, INT8, kernels, 100, (32, 64), (16, 48)
    )
    compile_model(config, silent)
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["buckets"] == {"context_encoding": [32, 64], "token_generation": [16, 48, 100]}
    assert open_model(tmp_path / "out", INT8, 1).buckets == BucketLists((32, 64), (16, 48, 100))
    del manifest["buckets"]  # as older manifests are
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(manifest))
    assert open_model(tmp_path / "out", INT8, 1).buckets is None


def test_a_longer_context_than_compiled_is_refused(checkpoints: Path, kernels: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    compile_model(CompileConfig(str(checkpoints / "tiny-qwen2"), target, 1, INT8, kernels, 48), silent)
    with pytest.raises(SettingsError, match="max_model_len is 64: this model was compiled for 48"):
        logits(tmp_path / "out", INT8, 1, kernels)


def test_another_configuration_beside_the_weights_is_refused(compiled: Compile) -> None:
    directory = compiled(tp=1)
    config = directory / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(CheckpointError, match=r"config\.json: differs from the one"):
        open_model(directory, RequestedFormats("bfloat16"), 1)


def test_a_compilation_that_fails_leaves_nothing(kernels: str, tmp_path: Path) -> None:
    broken, target = tmp_path / "broken", tmp_path / "outputs" / "out"
    write_checkpoint("tiny-llama", broken, Options(dtype="f32"))
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.nan)
    save_file(tensors, broken / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        compile_model(CompileConfig(str(broken), str(target), 1, RequestedFormats("bfloat16"), kernels), silent)
    assert list(target.parent.iterdir()) == []


class TestCommand:
    def test_compiles_with_the_flags_of_serve(
        self, checkpoints: Path, kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        flags = ["--quantization", "int8", "--modules-to-not-convert", "lm_head", "--tensor-parallel-size", "2"]
        command = ["compile", str(checkpoints / "tiny-llama"), "-o", str(tmp_path / "out"), *flags]
        assert main([*command, "--kernel-cache-dir", kernels]) == 0
        assert "core(s) to" in capsys.readouterr().err
        model = open_model(tmp_path / "out", RequestedFormats("bfloat16", "int8", ("lm_head",)), 2)
        model.source.finish()
        assert (model.formats.quantization, model.formats.of("lm_head")) == ("int8", "bfloat16")

    def test_needs_an_output(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["compile"]) == 2
        assert "-o (--output) is missing" in capsys.readouterr().err

    def test_overwrites_nothing(self, checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "mine.txt").write_text("keep")
        assert main(["compile", str(checkpoints / "tiny-llama"), "-o", str(tmp_path)]) == 2
        assert f"output {tmp_path} is not empty" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]

    @pytest.mark.parametrize("place", ["file", "file/below"])
    def test_a_place_that_cannot_be_a_directory_is_refused(
        self, checkpoints: Path, kernels: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
    ) -> None:
        (tmp_path / "file").write_text("keep")
        command = ["compile", str(checkpoints / "tiny-llama"), "-o", str(tmp_path / place)]
        assert main([*command, "--kernel-cache-dir", kernels]) == 2
        assert f"output {tmp_path / place}" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_does_not_compile_twice(
        self, compiled: Compile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["compile", str(compiled()), "-o", str(tmp_path / "again")]) == 2
        assert "is compiled already" in capsys.readouterr().err


def test_no_other_artifact_is_opened_than_the_one_of_the_digest(compiled: Compile, checkpoints: Path) -> None:
    directory = compiled()
    digest = hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
    assert open_model(directory, INT8, 2, digest=digest).formats.quantization == "int8"
    with pytest.raises(CheckpointError, match=f"has SHA-256 {digest}; require_artifact_digest is {'0' * 64}"):
        open_model(directory, INT8, 2, digest="0" * 64)
    (directory / MANIFEST).write_bytes((directory / MANIFEST).read_bytes() + b" ")
    with pytest.raises(CheckpointError, match="require_artifact_digest"):
        open_model(directory, INT8, 2, digest=digest)
    with pytest.raises(SettingsError, match="is no compiled model"):
        open_model(checkpoints / "tiny-qwen2", INT8, 2, digest=digest)
