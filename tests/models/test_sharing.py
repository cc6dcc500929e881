"""Every width of a model's feed-forward networks is divided on its own: what the cores hold together is the model."""

from __future__ import annotations

import pytest

from neuronserve.server.models.decoder import decoder_graph
from neuronserve.server.models.graph import linears
from neuronserve.server.models.linear import Linear
from neuronserve.server.models.public import candidates
from neuronserve.server.placement.matrices import PackedShape, Widths, packed_shapes
from neuronserve.server.placement.shard import ShardSpec


@pytest.mark.parametrize(
    ("name", "tp", "excess"),
    [
        ("mixtral-8x7b", 8, 0.001),
        ("deepseek-moe-16b-base", 2, 0.002),  # experts of 1,408, a shared one of 2,816, a dense layer of 10,944
        ("trinity-nano", 2, 0.002),
        ("Qwen1.5-MoE-A2.7B", 2, 0.001),
        ("gpt-oss-20b", 8, 0.1),  # 360 of 2,880 columns are padded to 384
        ("modernbert-base", 2, 0.001),
        ("all-MiniLM-L6-v2", 1, 0.001),
    ],
)
def test_the_cores_hold_every_matrix_once(name: str, tp: int, excess: float) -> None:
    (row,) = candidates(name)
    shard = ShardSpec.of(row.spec, tp)
    shapes = list(packed_shapes(row.spec, shard))
    whole = sum(linear.num_weights for linear in linears(decoder_graph(row.spec)))
    copied = sum(s.n * s.k for s in shapes if s.linear.parts[0].outputs.name == "experts" or s.linear.name == "pooler")
    stored = tp * (sum(s.n * s.k for s in shapes) - copied) + copied
    assert whole <= stored <= whole * (1 + excess)


def test_a_dense_layer_beside_experts_has_its_own_share() -> None:
    (row,) = candidates("trinity-mini")
    shard = ShardSpec.of(row.spec, 4)
    widths = Widths.of(row.spec, shard)
    downs = {op.inputs.size: op for op in decoder_graph(row.spec).ops() if isinstance(op, Linear) and op.name == "down"}
    assert {size: PackedShape.of(op, widths).k for size, op in downs.items()} == {6144: 1536, 1024: 256}
    assert widths.intermediate == 1536
