"""Names of models, and the refusals of unknown names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuronserve import cli
from neuronserve.planner.model_names import resolve_decoder, resolve_shape
from neuronserve.planner.plan.options import PlanOptions
from neuronserve.planner.plan.search import plan
from neuronserve.server.checkpoint.model_config import read_model_spec
from neuronserve.server.errors import CheckpointError, SettingsError
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.public import NAMED, known_model
from neuronserve.server.models.tensors import num_params
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits
from tools.random_checkpoint.shapes import SHAPES

DEFAULT_MODEL = Path(__file__).parents[2] / "server" / "default_model"


def test_a_checkpoint_directory_and_its_config_file_are_the_same_model() -> None:
    assert resolve_shape(str(DEFAULT_MODEL)) == read_model_spec(DEFAULT_MODEL)
    assert resolve_shape(str(DEFAULT_MODEL / "config.json")) == read_model_spec(DEFAULT_MODEL)


def test_a_config_file_of_any_name_needs_no_weights_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(SHAPES["qwen-0.5b"].config("bfloat16")))
    assert resolve_shape(str(file)).num_layers == 24


@pytest.mark.parametrize("name", sorted(set(NAMED) & set(SHAPES)))
def test_a_named_shape_is_the_one_that_random_checkpoints_have(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES[name].config("bfloat16")))
    made, named = read_model_spec(tmp_path), resolve_shape(name)
    assert num_params(named) == num_params(made)
    assert (named.num_kv_heads, named.max_position) == (made.num_kv_heads, made.max_position)


@pytest.mark.parametrize(
    ("name", "public", "billions"),
    [
        ("llama-7b", "Llama-2-7b", 6.74),
        ("llama-8b", "Llama-3-8B", 8.03),
        ("llama-13b", "Llama-2-13b", 13.02),
        ("llama-70b", "Llama-3-70B", 70.55),
        ("mistral-7b", "Mistral-7B-v0.2", 7.24),
        ("qwen-7b", "Qwen2.5-7B", 7.62),
    ],
)
def test_a_named_shape_has_the_size_and_dimensions_of_its_public_model(name: str, public: str, billions: float) -> None:
    spec, shape = resolve_shape(name), known_model(public)
    assert num_params(spec) / 1e9 == pytest.approx(billions, abs=0.006)
    assert shape is not None
    for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "widest_intermediate"):
        assert getattr(spec, field) == getattr(shape, field)


def test_names_may_be_written_in_capitals() -> None:
    assert resolve_shape("Llama-8B") == NAMED["llama-8b"]


def test_an_unknown_name_is_refused_with_the_nearest_and_all_names() -> None:
    with pytest.raises(SettingsError, match=r"model 'lama-8b' is no .* Did you mean llama-8b .*: qwen-0.5b, llama-1b$"):
        resolve_shape("lama-8b")


def test_a_configuration_that_cannot_be_planned_is_refused_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["DbrxForCausalLM"], "model_type": "dbrx"}')
    with pytest.raises(CheckpointError, match=r"config.json: hidden_size is missing"):
        resolve_shape(str(tmp_path))


def test_a_name_of_several_models_is_refused_with_all_of_them() -> None:
    with pytest.raises(SettingsError, match=r"may be any of mistralai/Mistral-7B-v0.1, .*, mistralai/Mistral-7B-v0.3"):
        resolve_shape("mistral-7b-instruct")


def test_an_unknown_hub_id_is_refused_with_the_nearest_hub_ids() -> None:
    with pytest.raises(SettingsError, match=r"Did you mean meta-llama/Llama-3.1-8B "):
        resolve_shape("meta-llama/Llama-3.1-9B")


def test_a_quantized_checkpoint_that_cannot_be_served_can_be_planned(tmp_path: Path) -> None:
    config = SHAPES["llama-8b"].config("bfloat16") | {"quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert num_params(resolve_shape(str(tmp_path))) == num_params(NAMED["llama-8b"])


def test_a_plan_needs_a_model_that_generates() -> None:
    assert resolve_shape("all-MiniLM-L6-v2").is_encoder
    with pytest.raises(SettingsError, match=r"'all-MiniLM-L6-v2' is an encoder \(BertModel\): it generates no tokens"):
        resolve_decoder("all-MiniLM-L6-v2")


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "qwen3-30b-a3b", "gemma-2-9b-it", "gpt2"])
def test_a_public_model_is_planned_by_its_name(name: str) -> None:
    options = PlanOptions(name, input_tokens=200, output_tokens=50, devices=("inf2.48xlarge",), max_batch=4)
    report = plan(options)
    assert report.candidates
    assert report.model == resolve_shape(name)


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("google/gemma-4-E2B-it", "KV heads that differ by layer"),
        ("Falcon-H1-0.5B-Instruct", "a state in place of keys and values"),
        ("Llama-3.2-11B-Vision-Instruct", "cross attention"),
    ],
)
def test_a_public_model_that_is_not_priced_is_refused_by_its_mechanism(
    name: str, mechanism: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", name, "--device", "trn2.48xlarge"]) == 2
    assert capsys.readouterr().err == (
        f"neuronserve: error: model {name!r} has {mechanism}, which the cost model does not price\n"
    )


def test_a_distilled_model_of_another_architecture_is_planned() -> None:
    assert resolve_shape("DeepSeek-R1-Distill-Llama-8B").num_layers == 32


@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_a_file_of_a_model_that_is_not_priced_is_refused_in_one_line_by_its_key(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    names = {"architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash"}
    file.write_text(json.dumps({**names, **sizes, "max_position_embeddings": 4096, "kv_lora_rank": 16}))
    assert cli.main([command, str(file), "--device", "trn2.48xlarge"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "kv_lora_rank is 16: LongcatFlashForCausalLM has latent attention (MLA), which the cost model does not price"
    )


@pytest.mark.parametrize(
    ("name", "weights_gib", "row_elements", "layers"),
    [
        ("deepseek-ai/DeepSeek-V3-0324", 671.0e9 * 2 / GIB, 512 + 64, 61),
        ("kimi-k2-instruct", 1026.4e9 * 2 / GIB, 512 + 64, 61),
        ("zai-org/GLM-5", 743.2e9 * 2 / GIB, 512 + 64, 78),
    ],
)
def test_latent_attention_caches_one_row_of_a_token_on_every_core(
    name: str, weights_gib: float, row_elements: int, layers: int
) -> None:
    """K and V of all heads would be 2 * heads * head size elements: 71 times as many for DeepSeek-V3."""
    model, shape = resolve_shape(name), ServingShape("bfloat16", 2048, 32, StepLimits(512, 4, 8))
    for tp in (1, 4):
        footprint = Footprint.of(model, tp, shape)
        assert footprint.kv_block == layers * row_elements * 2 * 32
        assert tp * footprint.fixed["weights"] / GIB == pytest.approx(weights_gib, rel=0.06)
