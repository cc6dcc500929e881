"""The encoder as a whole: batches, formats, instruction sets, heads, and what it refuses."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from neuronserve.server.config.formats import Quantization
from neuronserve.server.engine.encode.encoder import Encoder
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.errors import CheckpointError, DeviceMemoryError, InvalidRequest, SettingsError
from neuronserve.server.kernels.dispatch import host_isas
from neuronserve.server.placement.footprint import ServingShape, StepLimits
from neuronserve.server.placement.host_footprint import HostFootprint, packed_weight_bytes
from neuronserve.server.types import TokenizedText
from tests.depth import representative
from tests.encoders import FAMILIES, LONGEST, VOCAB, loaded, random_model, save, write_json
from tests.engine.config import engine_config

LENGTHS = (7, 1, 64, 30, LONGEST, 3, 65, 90, 12, 2, 2, 40)


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[TokenizedText]:
    rng = np.random.default_rng(7)
    return [TokenizedText(tuple(rng.integers(4, VOCAB, length).tolist())) for length in lengths]


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Family -> the directory of its checkpoint."""
    return cache(lambda name: save(random_model(name), tmp_path_factory.mktemp(name) / name))


MODELS = ["bert", "mpnet", "modernbert", "qwen3", "albert", "deberta-v2"]
CACHED: list[tuple[str, Quantization | None]] = [(name, None) for name in MODELS] + [("bert", "int8"), ("bert", "fp8")]


@pytest.mark.parametrize(
    ("name", "quantization"), representative(CACHED, ("bert", "int8"), ("modernbert", None), ("deberta-v2", None))
)
def test_a_text_is_bitwise_the_same_alone_and_among_others(
    checkpoint_of: Any, kernel_cache: str, name: str, quantization: Quantization | None
) -> None:
    given = texts()
    with loaded(checkpoint_of(name), kernel_cache, dtype="bfloat16", quantization=quantization) as one:
        together = one.encoder.encode(given)
        alone = np.concatenate([one.encoder.encode([text]) for text in given])
        backwards = one.encoder.encode(given[::-1])[::-1]
    assert np.array_equal(together, alone)
    assert np.array_equal(together, backwards)
    with loaded(checkpoint_of(name), kernel_cache, dtype="bfloat16", quantization=quantization, cpu_threads=1) as other:
        assert np.array_equal(other.encoder.encode(given), together)


FORMATS: list[tuple[Quantization | None, float]] = [(None, 0.9995), ("int8", 0.995), ("fp8", 0.99)]


@pytest.mark.slow
@pytest.mark.parametrize("isa", host_isas())
@pytest.mark.parametrize(("quantization", "least"), FORMATS)
def test_formats_are_near_float32_on_every_instruction_set(
    checkpoint_of: Any, kernel_cache: str, isa: Any, quantization: Quantization | None, least: float
) -> None:
    """Cosines of normalized vectors."""
    given = texts()
    with loaded(checkpoint_of("bert"), kernel_cache) as exact:
        want = exact.encoder.encode(given)
    with loaded(checkpoint_of("bert"), kernel_cache, isa, dtype="bfloat16", quantization=quantization) as found:
        got = found.encoder.encode(given)
    assert (got * want).sum(axis=1).min() >= least


HEADS = [
    (name, labels) for name in ("bert", "roberta", "distilbert", "mpnet", "modernbert", "qwen3") for labels in (1, 3)
]
HEADS += [(name, 3) for name in ("albert", "electra", "ernie", "nomic_bert", "jina_embeddings_v3", "gte")]
HEADS += [("deberta-v2", 1)]


@pytest.mark.parametrize(("name", "labels"), HEADS)
def test_classifiers_have_the_logits_of_transformers(tmp_path: Path, kernel_cache: str, name: str, labels: int) -> None:
    model = random_model(name, transformers.AutoModelForSequenceClassification, num_labels=labels)
    given = texts((9, 30, 1))
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([text.token_ids])).logits[0].numpy() for text in given]
    want = np.stack(logits)
    with loaded(save(model, tmp_path / name), kernel_cache) as found:
        assert found.encoder.head.is_classifier
        got = found.encoder.encode(given, is_raw=True)
        scores = found.encoder.encode(given)
    assert np.abs(got - want).max() <= 1e-5 * max(1.0, np.abs(want).max())
    expected = torch.from_numpy(want)
    expected = torch.sigmoid(expected) if labels == 1 else torch.softmax(expected, dim=1)
    assert np.abs(scores - expected.numpy()).max() <= 1e-5


def test_modules_of_sentence_transformers(checkpoint_of: Any, tmp_path: Path, kernel_cache: str) -> None:
    """Two ways of pooling side by side, a dense layer behind, and no normalization."""
    directory = tmp_path / "model"
    save(random_model("bert"), directory)
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(directory / "modules.json", modules)
    write_json(directory / "1_Pooling/config.json", {"pooling_mode": ["mean", "lasttoken"]})
    tanh = "torch.nn.modules.activation.Tanh"
    write_json(directory / "2_Dense/config.json", {"in_features": 96, "out_features": 8, "activation_function": tanh})
    torch.manual_seed(3)
    weights = {"linear.weight": torch.randn(8, 96) / 10, "linear.bias": torch.randn(8)}
    save_file(weights, directory / "2_Dense/model.safetensors")
    given = texts((9, 30, 1))
    with loaded(directory, kernel_cache) as found:
        got = found.encoder.encode(given)
        states = [found.encoder.states(text) for text in given]
    rows = np.stack([np.concatenate([each.mean(axis=0), each[-1]]) for each in states])
    want = np.tanh(rows @ weights["linear.weight"].numpy().T + weights["linear.bias"].numpy())
    assert np.abs(got - want).max() <= 1e-5


def test_settings_choose_how_to_pool(checkpoint_of: Any, kernel_cache: str) -> None:
    given = texts((9, 30))
    with loaded(checkpoint_of("qwen3"), kernel_cache, pooling="lasttoken", normalize=False) as found:
        got, states = found.encoder.encode(given), [found.encoder.states(text) for text in given]
        assert not any("no modules.json" in note for note in found.notes)
    assert np.array_equal(got, np.stack([each[-1] for each in states]))
    with loaded(checkpoint_of("qwen3"), kernel_cache) as found:
        assert [note.partition(":")[0] for note in found.notes] == [
            "no modules.json describes the pooling",
            "Qwen3Model was trained to continue texts",
        ]


def test_short_vectors_are_the_first_values_normalized_again(checkpoint_of: Any, kernel_cache: str) -> None:
    with loaded(checkpoint_of("bert"), kernel_cache) as found:
        rows = found.encoder.encode(texts((9, 30)))
        cut = found.encoder.shortened(rows, 5)
        assert np.allclose(cut, rows[:, :5] / np.linalg.norm(rows[:, :5], axis=1, keepdims=True), atol=1e-6)
        with pytest.raises(InvalidRequest, match="dimensions is 49: an embedding has 48"):
            found.encoder.shortened(rows, 49)


def test_texts_that_cannot_be_encoded(checkpoint_of: Any, kernel_cache: str) -> None:
    refused: dict[str, TokenizedText] = {
        "text 1 has 0 tokens: 1 to 100": TokenizedText(()),
        "text 1 has 101 tokens: 1 to 100": TokenizedText((5,) * 101),
        "text 1 has token 120: the vocabulary ends at 120": TokenizedText((5, VOCAB)),
        "text 1 has 1 token types for 2 tokens": TokenizedText((5, 6), (1,)),
    }
    with loaded(checkpoint_of("bert"), kernel_cache, max_model_len=100) as found:
        encoder: Encoder = found.encoder
        for complaint, text in refused.items():
            with pytest.raises(InvalidRequest, match=complaint):
                encoder.encode([TokenizedText((5,)), text])
        assert encoder.encode([]).shape == (0, 48)


@pytest.mark.parametrize(
    ("changes", "kind", "complaint"),
    [
        ({"max_model_len": LONGEST + 1}, SettingsError, f"max_model_len is {LONGEST + 1}: this model takes 2 to"),
        (
            {"device": "inf2.xlarge", "device_memory_utilization": 0.01},
            DeviceMemoryError,
            "does not fit on inf2.xlarge",
        ),
    ],
)
def test_refused_settings(
    checkpoint_of: Any, kernel_cache: str, changes: dict[str, Any], kind: type[Exception], complaint: str
) -> None:
    with pytest.raises(kind, match=complaint), loaded(checkpoint_of("bert"), kernel_cache, **changes):
        pass


def test_a_classifier_is_not_pooled_otherwise(tmp_path: Path, kernel_cache: str) -> None:
    directory = save(random_model("bert", transformers.AutoModelForSequenceClassification), tmp_path / "bert")
    refused = pytest.raises(SettingsError, match="pooling and normalize are for embeddings")
    with refused, loaded(directory, kernel_cache, pooling="mean"):
        pass


def test_a_head_whose_tensors_are_missing(tmp_path: Path, kernel_cache: str) -> None:
    model = random_model("bert")
    directory = save(model, tmp_path / "bert")
    config = model.config.to_dict() | {"architectures": ["BertForSequenceClassification"]}
    write_json(directory / "config.json", config)
    refused = pytest.raises(CheckpointError, match=r"tensor classifier\.weight: missing")
    with refused, loaded(directory, kernel_cache):
        pass


def test_older_files_name_norms_otherwise_and_carry_more(checkpoint_of: Any, tmp_path: Path, kernel_cache: str) -> None:
    """Load a checkpoint like bert-base-uncased: converted from TensorFlow, with its training head."""
    whole = checkpoint_of("bert")
    directory = tmp_path / "older"
    shutil.copytree(whole, directory)
    tensors = {f"bert.{name}": values for name, values in load_file(whole / "model.safetensors").items()}
    older = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): values
        for name, values in tensors.items()
        if "pooler" not in name
    }
    more = {"cls.predictions.bias": torch.zeros(VOCAB), "bert.embeddings.position_ids": torch.arange(LONGEST)}
    save_file(older | more, directory / "model.safetensors")
    config = json.loads((whole / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    write_json(directory / "config.json", config)
    with loaded(whole, kernel_cache) as found, loaded(directory, kernel_cache) as other:
        assert np.array_equal(other.encoder.encode(texts()), found.encoder.encode(texts()))


def test_an_encoder_is_not_served_to_generate(checkpoint_of: Any, kernel_cache: str) -> None:
    config = engine_config(
        checkpoint_of("bert"),
        kernel_cache,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        num_blocks_override=8,
        cpu_threads=1,
    )
    with pytest.raises(SettingsError, match="BertModel generates no text: `neuronserve embed` runs it"):
        load_engine(config, lambda _: None)


def test_every_family_is_tested() -> None:
    assert {"bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "modernbert", "qwen3"} <= set(FAMILIES)


@pytest.mark.parametrize("name", ["mpnet", "albert", "electra", "deberta-v2"])
@pytest.mark.parametrize("size", [1, 2])
def test_memory_is_what_was_counted(checkpoint_of: Any, kernel_cache: str, name: str, size: int) -> None:
    with loaded(checkpoint_of(name), kernel_cache, tensor_parallel_size=size) as found:
        at, limits = found.placement, StepLimits(found.limits.max_num_tokens, 0, 2)
        shape = ServingShape("float32", found.limits.max_length, at.cache.block_size, limits)
        counted = HostFootprint.of(at.spec, at.shard, shape)
        for use in ("tables", "workers", "activations"):
            assert sum(core.used[use] for core in at.cores) == counted.fixed[use]
        assert at.cores[0].used["weights"] == packed_weight_bytes(at.spec, at.shard, shape.formats)
