"""The table of public models: each row has the size that is stated of its model, and each name finds its row."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from neuronserve.planner.model_names import resolve_shape
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.families import FAMILIES
from neuronserve.server.models.planned import planned_spec
from neuronserve.server.models.public import TEST_SHAPES, PublicModel, candidates, known_model, models
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params

ROWS = models()
TOLERANCE = 0.01  # the stated number has three digits


def of(name: str) -> ModelSpec:
    (row,) = candidates(name)
    return row.spec


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.hub_id)
def test_a_row_has_the_number_of_parameters_that_is_stated_of_its_model(row: PublicModel) -> None:
    assert num_params(row.spec) / 1e9 == pytest.approx(row.params_b, rel=TOLERANCE)


def test_the_table_holds_dense_models_mixtures_of_experts_and_encoders() -> None:
    specs = [row.spec for row in ROWS]
    kinds = [("encoder" if spec.is_encoder else "moe" if spec.experts else "dense") for spec in specs]
    assert kinds.count("dense") >= 90
    assert kinds.count("moe") >= 15
    assert kinds.count("encoder") >= 15
    assert [row.hub_id for row in ROWS if row.spec != planned_spec(row.config)] == []


def test_every_hub_id_finds_its_own_row_with_and_without_its_organisation() -> None:
    ids = [(hub_id, row) for row in ROWS for hub_id in row.hub_ids]
    assert len({hub_id.lower() for hub_id, _ in ids}) == len(ids)
    for hub_id, row in ids:
        for name in (hub_id, hub_id.upper(), hub_id.rpartition("/")[2], f"someone/{hub_id.rpartition('/')[2]}"):
            assert candidates(name) == (row,), name


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("llama 3.1 8b", "meta-llama/Llama-3.1-8B"),
        ("Llama3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("Llama-2-13b-chat-hf", "meta-llama/Llama-2-13b-hf"),
        ("llama-3.2-1b", "meta-llama/Llama-3.2-1B"),
        ("Llama-3.3-70B", "meta-llama/Llama-3.1-70B"),
        ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("gemma-2-9b-it", "google/gemma-2-9b"),
        ("gemma-3-1b", "google/gemma-3-1b-it"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("mistral-nemo", "mistralai/Mistral-Nemo-Base-2407"),
        ("all-minilm-l6-v2", "sentence-transformers/all-MiniLM-L6-v2"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("Llama-4-Maverick-17B-128E", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
    ],
)
def test_a_name_is_found_by_rule(name: str, hub_id: str) -> None:
    assert [row.hub_id for row in candidates(name)] == [hub_id]
    assert resolve_shape(name) == of(hub_id)


@pytest.mark.parametrize("name", ["llama-3.1-9b", "llama", "phi-5", "", "/", "-", "instruct", "8b", "é" * 3000])
def test_a_name_that_no_model_has_finds_none(name: str) -> None:
    assert candidates(name) == ()


@pytest.mark.parametrize(
    ("description", "hub_id"),
    [
        ("Llama-3.3-70B (DeepSeek-R1-Distill-Llama-70B)", "meta-llama/Llama-3.1-70B"),
        ("Llama-3.1-8B-Instruct (unsloth)", "meta-llama/Llama-3.1-8B"),
        ("Mixtral-8x7B (Nous-Hermes-2)", "mistralai/Mixtral-8x7B-v0.1"),
        ("Qwen3-30B-A3B (bs16)", "Qwen/Qwen3-30B-A3B"),
        ("Trinity-Mini", "arcee-ai/Trinity-Mini"),
        ("phi-4 mini", "microsoft/Phi-4-mini-instruct"),
        ("a phi-4", "microsoft/phi-4"),
        ("opt-1.3b", "facebook/opt-1.3b"),
    ],
)
def test_a_description_means_the_longest_name_in_it(description: str, hub_id: str) -> None:
    assert known_model(description) == of(hub_id)


def test_the_shapes_of_random_checkpoints_are_not_taken_for_public_models() -> None:
    for name, hub_id in TEST_SHAPES.items():
        assert not candidates(name)
        public = of(hub_id)
        assert resolve_shape(name).num_layers == public.num_layers
        assert resolve_shape(name).vocab_size < public.vocab_size == resolve_shape(hub_id).vocab_size


@pytest.mark.parametrize(
    "row",
    [next(row for row in ROWS if row.config["model_type"] == kind) for kind in {r.config["model_type"] for r in ROWS}],
)
def test_what_can_only_be_planned_is_refused_by_the_server_with_what_it_supports(
    row: PublicModel, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(row.config))
    assert resolve_shape(str(tmp_path)) == row.spec
    if row.spec.architecture in FAMILIES:
        assert read_model_spec(tmp_path) == row.spec
        return
    missing = "text_config is None"  # of a type whose files nest what is served
    with pytest.raises(CheckpointError, match=f"'{row.spec.architecture}' is not supported; nearest is |{missing}"):
        read_model_spec(tmp_path)


@pytest.mark.parametrize(
    ("larger_first", "field"),
    [
        (("Qwen3-235B-A22B", "Qwen3-30B-A3B"), "num_layers"),
        (("gemma-2-27b", "gemma-2-9b", "gemma-2-2b"), "hidden_size"),
    ],
)
def test_a_larger_model_is_larger(larger_first: tuple[str, ...], field: str) -> None:
    assert all(getattr(of(a), field) > getattr(of(b), field) for a, b in pairwise(larger_first))


def test_the_command_line_starts_without_the_table() -> None:
    code = "import sys, neuronserve.cli; sys.exit('neuronserve.server.models.public' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
