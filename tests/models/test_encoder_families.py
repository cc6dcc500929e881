"""Encoders by their config.json: served and planned are one description, and what cannot be served is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel

from neuronserve.server.models.config_values import ConfigError
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.families import ENCODERS, FAMILIES, model_spec_of
from neuronserve.server.models.heads import Dense, RowFunction, classification_head
from neuronserve.server.models.layer import RopeSpec
from neuronserve.server.models.linear import Linear
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import tensor_shapes
from tests.encoders import random_model, save
from tests.model_specs import windows_of

TYPES = {
    "Bert": "bert",
    "Roberta": "roberta",
    "XLMRoberta": "xlm-roberta",
    "Camembert": "camembert",
    "MPNet": "mpnet",
    "DistilBert": "distilbert",
    "ModernBert": "modernbert",
    "Albert": "albert",
    "Electra": "electra",
    "Ernie": "ernie",
    "NomicBert": "nomic_bert",
    "JinaEmbeddingsV3": "jina_embeddings_v3",
    "Gte": "gte",
    "DebertaV2": "deberta-v2",
}
V3 = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 256}
OPTIONS: dict[str, dict[str, Any]] = {"DebertaV2": V3 | {"position_biased_input": False, "pos_att_type": "p2c|c2p"}}
RENAMED = ("NomicBert", "JinaEmbeddingsV3", "Gte")  # files have other names than the classes of transformers


def values_of(name: str, architecture: str | None = None) -> dict[str, Any]:
    values: dict[str, Any] = AutoConfig.for_model(TYPES[name], **OPTIONS.get(name, {})).to_dict()
    return values | {"architectures": [architecture or f"{name}Model"]}


def served(name: str, architecture: str | None = None, **changes: Any) -> ModelSpec:
    return model_spec_of(values_of(name, architecture) | changes)


def test_every_encoder_is_here() -> None:
    assert set(TYPES) == set(ENCODERS)


@pytest.mark.parametrize("name", [name for name in TYPES if name not in RENAMED])
def test_tensors_are_those_of_transformers(name: str) -> None:
    with torch.device("meta"):
        model = AutoModel.from_config(AutoConfig.for_model(TYPES[name], **OPTIONS.get(name, {})))
    spec = served(name)
    expected = {f"{spec.names.prefix}{key}": tuple(values.shape) for key, values in model.named_parameters()}
    assert tensor_shapes(spec) == expected


@pytest.mark.parametrize("name", RENAMED)
def test_tensors_are_those_of_published_files(tmp_path: Path, name: str) -> None:
    model = random_model(TYPES[name])
    with safe_open(save(model, tmp_path) / "model.safetensors", "np") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no mapping
    spec = served(name, **model.config.to_dict())
    assert tensor_shapes(spec) == {f"{spec.names.prefix}{key}": shape for key, shape in shapes.items()}


def test_layers_of_albert_share_their_weights() -> None:
    spec = served("Albert", num_hidden_layers=5, num_hidden_groups=2)
    graph = decoder_graph(spec)
    assert [layer.weights[0] for layer in spec.layers if layer.weights] == list("00011")
    assert graph.stored_layers() == [0, 3]
    assert graph.layers[0] == graph.layers[2] != graph.layers[3]
    assert sum(group.count for group in graph.groups) == 5
    one, all_of_them = (dict(graph.counted(is_computed=each)) for each in (False, True))
    qkv = next(op for op in one if isinstance(op, Linear) and op.name == "qkv")
    assert (one[qkv], all_of_them[qkv]) == (1, 3)


def test_nomic_reads_keys_of_its_publisher() -> None:
    published = {"n_embd": 96, "n_head": 6, "n_inner": 128, "n_layer": 2, "n_positions": 8192, "rotary_emb_base": 500}
    config = {"architectures": ["NomicBertModel"], "auto_map": {"AutoModel": "modeling.NomicBertModel"}, **published}
    spec = model_spec_of(config)
    assert (spec.hidden_size, spec.num_heads, spec.num_layers, spec.max_position) == (96, 6, 2, 8192)
    assert spec.attention.rope == RopeSpec(500.0)


def test_positions_begin_after_the_padding() -> None:
    assert (served("Bert").stack.input.num_positions, served("Bert").max_position) == (512, 512)
    roberta = served("Roberta", max_position_embeddings=514)
    assert (roberta.stack.input.num_positions, roberta.max_position) == (514, 512)
    assert served("XLMRoberta", max_position_embeddings=514, pad_token_id=0).max_position == 513


def test_layers_of_modernbert_alternate() -> None:
    spec = served("ModernBert")
    assert windows_of(spec)[:4] == (0, 128, 128, 0)
    assert [layer.norms for layer in spec.layers[:2]] == ["before_ffn", "before"]
    bases = [layer.mixer.rope for layer in spec.layers[:3]]
    assert [rope.theta for rope in bases if rope is not None] == [160_000.0, 10_000.0, 10_000.0]
    older = values_of("ModernBert") | {"global_rope_theta": 80_000.0, "local_rope_theta": 5000.0}
    for key in ("rope_parameters", "layer_types"):
        del older[key]
    rope = model_spec_of(older | {"global_attn_every_n_layers": 2}).layers[1].mixer.rope
    assert rope is not None
    assert rope.theta == 5000.0


@pytest.mark.parametrize("architecture", ["Qwen3Model", "LlamaForSequenceClassification", "MistralModel"])
def test_a_decoder_embeds_without_its_output_layer(architecture: str) -> None:
    spec = model_spec_of({"architectures": [architecture]})
    assert spec.head is None
    assert "lm_head.weight" not in tensor_shapes(spec)


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("Bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("Bert", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
        ("Bert", {"is_decoder": True}, "is_decoder is True"),
        ("Bert", {"num_attention_heads": 7}, "hidden_size is 768: not a multiple of num_attention_heads, 7"),
        ("Roberta", {"max_position_embeddings": 2}, "max_position_embeddings is 2: the first 2 are for padding"),
        ("MPNet", {"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64"),
        ("ModernBert", {"layer_types": ["full_attention"]}, "layer_types is ['full_attention']: must name the type"),
        ("DistilBert", {"n_heads": 0}, "n_heads is 0"),
        ("Albert", {"inner_group_num": 2}, "inner_group_num is 2"),
        ("Albert", {"num_hidden_groups": 13}, "num_hidden_groups is 13: there are 12 layers"),
        ("DebertaV2", {"conv_kernel_size": 3}, "conv_kernel_size is 3"),
        ("DebertaV2", {"relative_attention": False}, "relative_attention is False"),
        ("DebertaV2", {"share_att_key": False}, "share_att_key is False"),
        ("DebertaV2", {"pos_att_type": ["c2p"]}, "pos_att_type is ['c2p']"),
        ("DebertaV2", {"pos_att_type": "c2p|p2p"}, "pos_att_type is 'c2p|p2p'"),
        ("NomicBert", {"num_experts": 8}, "num_experts is 8"),
        ("NomicBert", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction is 0.5"),
        ("NomicBert", {"prenorm": True}, "prenorm is True"),
    ],
)
def test_refusals(name: str, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        served(name, **changes)
    assert complaint in str(refused.value)


SEQUENCES = sorted(name for name in FAMILIES if name.endswith("ForSequenceClassification"))


@pytest.mark.parametrize("architecture", SEQUENCES)
def test_a_classifier_has_a_head_and_scores(architecture: str) -> None:
    one = classification_head(architecture, {"id2label": {"0": "score"}})
    three = classification_head(architecture, {"id2label": {"1": "b", "0": "a", "2": "c"}})
    assert one is not None
    assert three is not None
    assert one.steps[-1] == RowFunction("sigmoid")
    assert three.steps[-1] == RowFunction("softmax")
    assert three.labels == ("a", "b", "c")
    assert any(isinstance(step, Dense) for step in one.steps)


@pytest.mark.parametrize(
    ("values", "function"),
    [
        ({"num_labels": 1}, "sigmoid"),
        ({}, "softmax"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"num_labels": 1, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, "identity"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}, "sigmoid"),
    ],
)
def test_scores(values: dict[str, Any], function: str) -> None:
    head = classification_head("BertForSequenceClassification", values)
    assert head is not None
    assert head.steps[-1] == RowFunction(function)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label is"),
        ({"sbert_ce_default_activation_function": "mine.Scale"}, "activation_fn is 'mine.Scale': supported are"),
    ],
)
def test_refused_heads(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        classification_head("BertForSequenceClassification", values)
    assert complaint in str(refused.value)


def test_what_embeds_has_no_head_of_its_own() -> None:
    assert classification_head("BertModel", {}) is None
