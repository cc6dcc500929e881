"""A step of single tokens in shares of its rows, each computed by one host thread from the first layer to the last.

Threads that divide each matrix meet after each, sixty times in six layers: where another process has the CPU of one of
them for a while, the others wait. A share needs nobody until it is done, and who is done takes another. But each share
reads all weights, so this is for models whose weights stay near, and shares have rows enough to hide that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

NEAR_WEIGHT_BYTES = 16 << 20  # that stay in a third cache, or are read again in little time
MOST_ROW_SHARES = 8  # each has a scratch of its own
_LEAST_ROWS = 8  # of a share
_ROW_WORK = 256  # keys that take as long as all else of a row, in a model of such a size
_UNEVEN = 1.25  # longest share by the mean: beyond that, threads that help each other in each layer are sooner done


def row_shares(positions: npt.NDArray[np.int32], num_workers: int) -> int:
    """Number of shares of rows at `positions` for so many workers; 0 where they had better not be divided so."""
    rows = len(positions)
    each = min(rows // (_LEAST_ROWS * num_workers), MOST_ROW_SHARES // num_workers)
    shares = each * num_workers
    if num_workers == 1 or shares == 0:
        return 0
    fours = -(-rows // 4)
    begins = [-(-fours * share // shares) * 4 for share in range(shares)]  # as share_begin has them
    work = np.add.reduceat(positions + _ROW_WORK, begins)
    return shares if work.max() * shares <= _UNEVEN * work.sum() else 0
