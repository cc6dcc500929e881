"""Graphs of layers that differ: sums over groups are sums over all, and encoders have no output layer."""

from __future__ import annotations

from math import prod

import pytest

from neuronserve.server.errors import DeviceError
from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.graph import layer_ops
from neuronserve.server.models.linear import Linear
from neuronserve.server.models.ops import Attention, Experts, Parallel
from neuronserve.server.models.public import candidates
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.models.tensors import num_params, op_tensors, tensor_shapes


def of(name: str) -> ModelSpec:
    (row,) = candidates(name)
    return row.spec


@pytest.mark.parametrize(
    "name",
    ["llama-4-maverick-17b-128e", "deepseek-moe-16b-base", "trinity-nano", "gpt-j-6b", "pythia-1b", "olmo-2-1124-7b"],
)
def test_sums_over_what_is_alike_are_sums_over_all(name: str) -> None:
    spec = of(name)
    graph = decoder_graph(spec)
    by_kind: dict[str, int] = {}
    for op, count in graph.counted():
        by_kind[type(op).__name__] = by_kind.get(type(op).__name__, 0) + count
    one_by_one: dict[str, int] = {}
    for op in graph.ops():
        one_by_one[type(op).__name__] = one_by_one.get(type(op).__name__, 0) + 1
    assert by_kind == one_by_one
    assert num_params(spec) == sum(prod(shape) for shape in tensor_shapes(spec).values())
    assert dict(graph.counted(by_name=True)).keys() == dict.fromkeys(graph.ops()).keys()


def test_groups_are_the_layers_that_differ_in_names_alone() -> None:
    graph = decoder_graph(of("llama-4-maverick-17b-128e"))
    assert sorted(i for group in graph.groups for i in group.indices) == list(range(48))
    has_experts = {group.indices[0] % 2: any(isinstance(op, Experts) for op in group.ops) for group in graph.groups}
    assert has_experts == {0: False, 1: True}
    for group in graph.groups:
        assert group.ops == graph.layers[group.indices[0]]


def test_experts_are_named_each_and_counted_together() -> None:
    spec = of("qwen3-30b-a3b")
    experts = next(op for op in decoder_graph(spec).layers[5] if isinstance(op, Experts))
    assert (experts.count, experts.per_token, experts.shared) == (128, 8, ())
    modules = [op.modules for op in experts.network(17) if isinstance(op, Linear)]
    at = "model.layers.5.mlp.experts.17."
    assert modules == [(f"{at}gate_proj", f"{at}up_proj"), (f"{at}down_proj",)]
    weights = sum(op.num_weights for op in experts.first if isinstance(op, Linear))
    assert weights == 3 * 2048 * 768


def test_a_shared_expert_and_dense_layers_have_widths_of_their_own() -> None:
    graph = decoder_graph(of("deepseek-moe-16b-base"))
    dense, mixed = graph.layers[0], graph.layers[1]
    assert [op.inputs.size for op in dense if isinstance(op, Linear) and op.name == "down"] == [10_944]
    experts = next(op for op in mixed if isinstance(op, Experts))
    widths = {op.inputs.size for part in (experts.first, experts.shared) for op in part if isinstance(op, Linear)}
    assert widths == {2048, 1408, 2 * 1408}


def test_an_encoder_attends_to_both_sides_and_has_no_output_layer() -> None:
    spec = of("all-MiniLM-L6-v2")
    graph = decoder_graph(spec)
    assert spec.is_encoder
    assert not graph.has_head
    assert not any(op.is_causal for op in graph.ops() if isinstance(op, Attention))
    assert [op.name for op in graph.tail if isinstance(op, Linear)] == ["pooler"]
    tables = (f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))
    assert set(tables) < tensor_shapes(spec).keys()
    with pytest.raises(DeviceError, match="no output layer"):
        _ = graph.head


def test_branches_side_by_side_read_one_value() -> None:
    layer = decoder_graph(of("gpt-j-6b")).layers[0]
    (branches,) = [op.branches for op in layer if isinstance(op, Parallel)]
    assert [next(op.name for op in branch if isinstance(op, Linear)) for branch in branches] == ["qkv", "up"]
    tensors = [name for op in layer_ops(layer) for name, _ in op_tensors(op)]
    assert len(tensors) == len(set(tensors)) == 10
