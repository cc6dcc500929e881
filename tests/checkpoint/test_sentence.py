"""The files of sentence-transformers beside a checkpoint: what they say, and what is refused of them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neuronserve.server.checkpoint.sentence import SentenceModel, read_sentence_model
from neuronserve.server.errors import CheckpointError
from neuronserve.server.models.heads import Dense, Head, Normalize
from tests.encoders import write_json


def module(kind: str, path: str = "") -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


TRANSFORMER, POOLING, NORMALIZE = module("Transformer"), module("Pooling", "1_Pooling"), module("Normalize", "2_N")
DENSE = module("Dense", "2_Dense")
TANH = "torch.nn.modules.activation.Tanh"


def write(directory: Path, modules: list[Any] | None = None, **files: object) -> Path:
    """`files` by their names, with __ for a slash and without .json."""
    if modules is not None:
        write_json(directory / "modules.json", modules)
    for name, value in files.items():
        write_json(directory / f"{name.replace('__', '/')}.json", value)
    return directory


def refusal(directory: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        read_sentence_model(directory)
    return str(refused.value)


def test_without_files_nothing_is_said(tmp_path: Path) -> None:
    assert read_sentence_model(tmp_path) == SentenceModel()


@pytest.mark.parametrize(
    ("pooling", "modes"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, ("mean",)),
        ({"word_embedding_dimension": 8, "pooling_mode_cls_token": True}, ("cls",)),
        ({"pooling_mode_lasttoken": True}, ("lasttoken",)),
        ({"pooling_mode_weightedmean_tokens": True}, ("weightedmean",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
        ({"embedding_dimension": 8, "pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len_tokens",)),
        ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
        ({}, ("mean",)),
    ],
)
def test_pooling(tmp_path: Path, pooling: dict[str, Any], modes: tuple[str, ...]) -> None:
    write(tmp_path, [TRANSFORMER, POOLING, NORMALIZE], **{"1_Pooling__config": pooling})
    assert read_sentence_model(tmp_path).head == Head(modes, (Normalize(),))


def test_lengths_prompts_and_dense_layers(tmp_path: Path) -> None:
    write(
        tmp_path,
        [TRANSFORMER, POOLING, DENSE, NORMALIZE],
        sentence_bert_config={"max_seq_length": 256, "do_lower_case": True},
        config_sentence_transformers={"prompts": {"query": "Q: "}, "default_prompt_name": "query", "__version__": {}},
        **{"2_Dense__config": {"in_features": 8, "out_features": 4, "bias": False, "activation_function": TANH}},
    )
    dense = Dense("linear", "tanh", has_bias=False, folder="2_Dense")
    expected = SentenceModel(Head(("mean",), (dense, Normalize())), 256, True, {"query": "Q: "}, "query")
    assert read_sentence_model(tmp_path) == expected


@pytest.mark.parametrize(
    ("modules", "files", "complaint"),
    [
        ([TRANSFORMER, POOLING, module("LSTM", "2_LSTM")], {}, "module 'LSTM' is not supported"),
        (
            [{"type": "custom_st.Thing", "path": ""}, POOLING],
            {},
            "module 'custom_st.Thing' is the checkpoint's",
        ),
        ([module("WordEmbeddings"), POOLING], {}, "modules are 'WordEmbeddings', 'Pooling': they must begin with"),
        ([TRANSFORMER, module("Pooling", "../else")], {}, "path '../else' is not the name of a folder"),
        ([TRANSFORMER, module("Pooling", "/etc")], {}, "path '/etc' is not the name of a folder"),
        ([TRANSFORMER, POOLING], {"1_Pooling__config": {"pooling_mode": "median"}}, "pooling_mode is 'median'"),
        ([TRANSFORMER, POOLING, DENSE], {}, "no such file"),
        (
            [TRANSFORMER, POOLING, DENSE],
            {"2_Dense__config": {"in_features": 8, "out_features": 8, "activation_function": "os.system"}},
            "activation_function is 'os.system': supported are torch.nn.Identity",
        ),
        (
            [TRANSFORMER, POOLING],
            {"1_Pooling__config": {"include_prompt": False}, "config_sentence_transformers": {"prompts": {"a": "b"}}},
            "include_prompt is False",
        ),
        (None, {"config_sentence_transformers": {"default_prompt_name": "a"}}, "default_prompt_name is 'a'"),
        (None, {"sentence_bert_config": {"max_seq_length": -1}}, "max_seq_length is -1"),
    ],
)
def test_refusals(tmp_path: Path, modules: list[Any] | None, files: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(write(tmp_path, modules, **files))
