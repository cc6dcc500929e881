"""The memory account against published ones, by category (tools/memory_accounts.py)."""

from __future__ import annotations

import pytest

from neuronserve.server.placement.core_share import CoreShare
from tools.memory_accounts import ACCOUNTS, Measured, rows, table

# Largest relative error of each category. Coefficients are those of ranks 1 to 7; rank 0's weights are by a formula,
# and its DMA rings by the share of the other ranks.
FITTED = {"kv": 0.001, "scratchpad": 0.001, "collectives": 0.001, "code": 0.001, "runtime": 0.15, "all": 0.01}
TOLERANCES = {
    "8B TP8, rank 0": FITTED | {"weights": 0.03, "dma_rings": 0.06},
    "8B TP8, ranks 1-7": FITTED | {"weights": 0.02, "dma_rings": 0.02},
    "70B TP12": {
        "tensors": 0.02,
        "scratchpad": 0.001,
        "collectives": 0.11,
        "dma_rings": 0.02,
        "code": 0.12,
        "all": 0.01,
    },
    "Qwen3-30B-A3B TP8": {"all": 0.05},
}


@pytest.mark.parametrize("measured", ACCOUNTS, ids=lambda one: one.name)
def test_a_published_account_is_met_by_category(measured: Measured) -> None:
    found = {use: computed / published - 1 for use, published, computed in rows(measured)}
    assert found.keys() == TOLERANCES[measured.name].keys()
    for use, error in found.items():
        assert abs(error) <= TOLERANCES[measured.name][use], (use, error)


def test_the_categories_add_up_to_the_published_total() -> None:
    for measured in ACCOUNTS[:2]:
        uses = dict(measured.uses)
        assert uses.pop("all") == pytest.approx(sum(uses.values()), abs=2)  # the page rounds each


def test_the_accounts_are_of_the_stated_degrees() -> None:
    assert [CoreShare.of(each.spec, each.tp).kv_heads for each in ACCOUNTS] == [1, 1, 6, 1]


def test_the_table_has_a_column_for_each_account() -> None:
    head, _, *body = table().splitlines()
    assert head.count("|") == len(ACCOUNTS) + 2
    assert {line.split(" | ")[0][2:] for line in body} >= {"weights", "kv", "collectives", "dma_rings", "code", "all"}
