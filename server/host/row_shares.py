"""Division of a step's rows into shares, each computed by one host thread from the first layer to the last.

Threads that divide each matrix wait for each other after it, sixty times in six layers: when another process takes the
CPU of one thread, all wait. A share waits for nothing until it is done, and an idle thread takes the next. But each
share reads all weights, so shares are for models whose weights stay in cache, and have enough rows to hide the reads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NEAR_WEIGHT_BYTES = 16 << 20  # stay in a third-level cache, or take little time to read again
MOST_ROW_SHARES = 8  # each needs scratch memory
_LEAST_ROWS = 8  # rows of a share
_ROW_WORK = 256  # keys whose attention takes as long as the rest of a row, in a model of such a size
_UNEVEN = 1.25  # longest share / mean: beyond it, threads that divide each layer are faster


def row_shares(positions: npt.NDArray[np.int32], num_workers: int) -> int:
    """Return the number of shares of rows at `positions` for `num_workers`; 0 when shares would be slower."""
    rows = len(positions)
    each = min(rows // (_LEAST_ROWS * num_workers), MOST_ROW_SHARES // num_workers)
    shares = each * num_workers
    if num_workers == 1 or shares == 0:
        return 0
    fours = -(-rows // 4)
    begins = [-(-fours * share // shares) * 4 for share in range(shares)]  # as share_begin computes them
    work = np.add.reduceat(positions + _ROW_WORK, begins)
    return shares if work.max() * shares <= _UNEVEN * work.sum() else 0
