"""GGUF files as models: whole or in parts, made into a directory once, served, planned and compiled by their name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.gguf.files import MAX_PARTS
from neuronserve.server.checkpoint.hub import resolve_model
from neuronserve.server.checkpoint.sentence import read_sentence_model
from neuronserve.server.config import CompileConfig
from neuronserve.server.config.formats import RequestedFormats
from neuronserve.server.engine.load.artifact_writer import compile_model
from neuronserve.server.engine.load.inventory import weights_identity
from neuronserve.server.engine.load.model_source import open_model
from neuronserve.server.errors import CheckpointError, SettingsError
from neuronserve.server.models.families import model_spec_of
from neuronserve.server.models.heads import Head, Normalize
from tests.checkpoint.gguf.made import random_tensors, write_gguf, write_pair
from tests.checkpoint.gguf.test_apart import CASES, file_of

ASKED = RequestedFormats("float32")


def split(path: Path, count: int) -> list[Path]:
    """The file at `path` in parts, as the package names them; `path` is removed."""
    reader = gguf.GGUFReader(path)
    size = -(-len(reader.tensors) // count)
    found = [path.with_name(f"part-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]
    for number, part in enumerate(found):
        writer = gguf.GGUFWriter(part, "llama")
        if number == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    kind = field.types[0]
                    writer.add_key_value(key, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number * size : (number + 1) * size]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    path.unlink()
    return found


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return split(write_pair("tiny-llama", tmp_path), 3)


TOKENS = [3, 1, 4, 1, 5, 9]


def test_answers_of_a_file_are_those_of_the_checkpoint(
    tmp_path: Path, engine_logits: Callable[..., np.ndarray]
) -> None:
    directory = resolve_model(str(write_pair("tiny-llama", tmp_path)), None, tmp_path / "cache")
    for tp in (1, 2):
        expected = engine_logits(tmp_path / "plain", "float32", tp, TOKENS)
        assert np.array_equal(engine_logits(directory, "float32", tp, TOKENS), expected)


def test_a_directory_is_made_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    path, cache = write_pair("tiny-llama", tmp_path), tmp_path / "cache"
    first = gguf_directory(path, cache)
    stamp = (first / "tokenizer.json").stat().st_mtime_ns
    assert gguf_directory(path, cache) == first
    assert (first / "tokenizer.json").stat().st_mtime_ns == stamp
    os.utime(path, ns=(1, 1))
    second = gguf_directory(path, cache)
    assert second != first
    assert {each.name for each in cache.iterdir()} == {first.name, second.name}
    assert not any((second / "model.gguf").samefile(each) for each in first.glob("*.json"))


@pytest.mark.parametrize("asked", [0, 2])
def test_parts_are_one_model_whichever_is_named(tmp_path: Path, parts: list[Path], asked: int) -> None:
    directory = gguf_directory(parts[asked], tmp_path / "cache")
    assert open_model(directory, ASKED, 1).spec == open_model(tmp_path / "plain", ASKED, 1).spec
    identity = weights_identity(directory)
    assert identity.sha256 != weights_identity(tmp_path / "plain").sha256
    assert weights_identity(directory) == identity


def refusal(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        gguf_directory(path, path.parent / "cache")
    return caught.value


def test_parts_that_are_missing_are_named(parts: list[Path]) -> None:
    parts[1].unlink()
    error = refusal(parts[0])
    assert (error.file, error.reason) == (str(parts[1]), "no such file")


def test_parts_that_disagree_are_refused(parts: list[Path]) -> None:
    third = parts[2].read_bytes()
    parts[2].write_bytes(parts[1].read_bytes())
    assert "split.no is 1: its name makes it 2" in str(refusal(parts[0]))
    parts[2].write_bytes(third.replace(b"split.count\x02\0\0\0\x03\0", b"split.count\x02\0\0\0\x04\0"))
    assert "split.count is 4: its name makes it 3" in str(refusal(parts[0]))


def test_a_tensor_in_two_parts_is_refused(parts: list[Path]) -> None:
    second = parts[1].read_bytes().replace(b"split.no\x02\0\0\0\x01\0", b"split.no\x02\0\0\0\x02\0")
    parts[2].write_bytes(second)
    error = refusal(parts[0])
    assert error.file == str(parts[2])
    assert error.reason == f"is in {parts[1].name} too"


def test_a_part_under_another_name_is_refused(tmp_path: Path, parts: list[Path]) -> None:
    alone = parts[0].rename(tmp_path / "alone.gguf")
    assert "split.count is 3: its name makes it 1" in str(refusal(alone))
    many = tmp_path / f"many-00001-of-{MAX_PARTS + 1:05}.gguf"
    many.write_bytes(b"")
    assert f"at most {MAX_PARTS}" in str(refusal(many))


def test_a_file_is_planned_by_its_header(tmp_path: Path) -> None:
    spec = resolve_shape(str(write_pair("tiny-qwen3", tmp_path)))
    assert spec == resolve_shape(str(tmp_path / "plain"))


def test_a_file_is_compiled_with_its_tokenizer(tmp_path: Path) -> None:
    directory = resolve_model(str(write_pair("tiny-llama", tmp_path)), None, tmp_path / "cache")
    config = CompileConfig(str(directory), str(tmp_path / "compiled"), 1, ASKED, str(tmp_path / "kernels"))
    compile_model(config, lambda _: None)
    assert {path.name for path in (tmp_path / "compiled").iterdir()} >= {"config.json", "tokenizer.json"}
    assert not (tmp_path / "compiled" / "model.gguf").exists()
    assert open_model(tmp_path / "compiled", ASKED, 1).spec.num_layers == 3


def test_a_revision_of_a_file_is_a_contradiction(tmp_path: Path) -> None:
    path = write_pair("tiny-llama", tmp_path)
    with pytest.raises(SettingsError, match="local file"):
        resolve_model(str(path), "main", tmp_path / "cache")


def test_the_pooling_that_a_file_states_is_that_of_its_texts(tmp_path: Path) -> None:
    """llama.cpp normalizes vectors whatever the file says."""
    case = CASES["bert"]
    stated = file_of(case)
    for number, modes in ((1, ("mean",)), (2, ("cls",)), (3, ("lasttoken",))):
        file = stated | {"keys": stated["keys"] | {"pooling_type": number}}
        path = write_gguf(tmp_path / f"{number}.gguf", file, random_tensors(model_spec_of(case.own)))
        assert read_sentence_model(gguf_directory(path, tmp_path / "cache")).head == Head(modes, (Normalize(),))
    path = write_gguf(tmp_path / "none.gguf", stated, random_tensors(model_spec_of(case.own)))
    assert read_sentence_model(gguf_directory(path, tmp_path / "cache")).head is None


def test_layers_after_the_pooling_are_refused(tmp_path: Path) -> None:
    case = CASES["bert"]
    file = file_of(case) | {"dense_2.weight": np.ones((4, 4), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", file, random_tensors(model_spec_of(case.own)))
    with pytest.raises(CheckpointError, match=r"dense_2\.weight: layers after the pooling are not supported"):
        gguf_directory(path, tmp_path / "cache")
