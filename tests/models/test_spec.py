"""Records of a model: equal ones have one graph, and a part of the layers is a model of its own."""

from __future__ import annotations

from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.graph import last_op
from neuronserve.server.models.ops import Attention, Experts
from neuronserve.server.models.public import candidates
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params
from tests.model_specs import with_attention, with_windows

SIZES = DecoderSizes(4, 64, 128, 4, 2, 16, 100)


def known(name: str) -> ModelSpec:
    (row,) = candidates(name)
    return row.spec


def test_equal_models_have_one_graph() -> None:
    first, second = SIZES.spec("A", 64), SIZES.spec("A", 64)
    assert first is not second
    assert decoder_graph(first) is decoder_graph(second)
    assert decoder_graph(with_attention(first, has_sinks=True)) is not decoder_graph(first)


def test_each_layer_has_a_mixer_of_its_own() -> None:
    graph = decoder_graph(with_windows(SIZES.spec(), 0, 9, 9, 0))
    windows = [attention.window for layer in graph.layers if (attention := last_op(layer, Attention)) is not None]
    assert windows == [0, 9, 9, 0]
    assert [group.indices for group in graph.groups] == [(0, 3), (1, 2)]


def test_stages_together_have_the_layers_of_the_model() -> None:
    whole = known("deepseek-moe-16b-base")
    stages = [whole.with_layers(whole.layers[start:end]).with_vocabulary(0) for start, end in ((0, 10), (10, 28))]
    final_norm = whole.hidden_size
    layers = num_params(whole) - 2 * whole.vocab_size * whole.hidden_size - final_norm
    assert sum(num_params(stage) - final_norm for stage in stages) == layers
    kinds = [any(isinstance(op, Experts) for op in layer) for layer in decoder_graph(stages[0]).layers]
    assert kinds == [False] + [True] * 9
