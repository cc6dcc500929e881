"""Names of a family's modules: its own words in the place of the graph's, the longest run of them first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronserve.server.models.names import Names
from neuronserve.server.models.public import candidates
from neuronserve.server.models.tensors import tensor_shapes

MIXTRAL = {"mlp": "block_sparse_moe", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
GPT2 = {"model.layers": "transformer.h", "mlp": "ffn", "mlp.up_proj": "mlp.c_fc", "model.norm": "transformer.ln_f"}


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        ({}, "model.layers.3.mlp.up_proj", "model.layers.3.mlp.up_proj"),
        (MIXTRAL, "model.layers.3.mlp.experts.7.up_proj", "model.layers.3.block_sparse_moe.experts.7.w3"),
        (MIXTRAL, "model.layers.3.mlp.gate", "model.layers.3.block_sparse_moe.gate"),
        (GPT2, "model.layers.11.mlp.up_proj", "transformer.h.11.mlp.c_fc"),
        (GPT2, "model.layers.11.mlp.down_proj", "transformer.h.11.ffn.down_proj"),
        (GPT2, "model.norm", "transformer.ln_f"),
        (GPT2, "lm_head", "lm_head"),
        ({"norm": "scale"}, "model.norm", "model.scale"),
        ({"norm": "scale"}, "model.embed_norm", "model.embed_norm"),
    ],
)
def test_whole_words_are_replaced(words: dict[str, str], name: str, expected: str) -> None:
    assert Names.of(words, "model.").module(name) == expected


def test_every_tensor_of_a_model_has_its_familys_name() -> None:
    (row,) = candidates("mixtral-8x7b")
    names = tensor_shapes(replace(row.spec, names=Names.of(MIXTRAL, "model.")))
    assert names["model.layers.31.block_sparse_moe.experts.7.w2.weight"] == (4096, 14_336)
    assert "model.layers.31.block_sparse_moe.gate.weight" in names
    assert not any("mlp" in name or ("proj" in name.split(".")[-2] and "attn" not in name) for name in names)
    assert len(names) == len(tensor_shapes(row.spec))
