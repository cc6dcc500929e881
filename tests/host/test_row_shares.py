"""When a step of single tokens is divided by rows, and into how many shares."""

from __future__ import annotations

import numpy as np
import pytest

from neuronserve.server.host.row_shares import MOST_ROW_SHARES, row_shares


@pytest.mark.parametrize(
    ("rows", "num_workers", "shares"),
    [
        (15, 2, 0),  # too few rows for the weights to be read by each thread
        (16, 2, 2),
        (31, 2, 2),
        (32, 2, 4),  # who is done takes another
        (64, 2, 8),
        (512, 2, 8),
        (32, 1, 0),
        (64, 3, 6),
        (64, 16, 0),  # more threads than shares
    ],
)
def test_a_thread_has_rows_enough(rows: int, num_workers: int, shares: int) -> None:
    assert row_shares(np.full(rows, 100, np.int32), num_workers) == shares <= MOST_ROW_SHARES


def test_contexts_that_one_share_would_have_alone_are_divided_among_all() -> None:
    positions = np.full(32, 50, np.int32)
    positions[3] = 400
    assert row_shares(positions, 2) == 4
    positions[:8] = 2000
    assert row_shares(positions, 2) == 0


def test_no_rows_are_no_shares() -> None:
    assert row_shares(np.zeros(0, np.int32), 2) == 0
