"""Lengths of ShareGPT's prompts and answers: a joint histogram of 30,731 chats of up to 8k tokens.

Counted from the lengths that microsoft/vidur publishes (data/processed_traces, MIT licence). Its prompts hold the
conversation so far. Bins are half open, in tokens of the Llama 2 tokenizer.
"""

from __future__ import annotations

import numpy as np

from .synthetic import random_stream
from .workload import FloatArray, IntArray, Workload

# fmt: off
INPUT_EDGES = (1, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8193)
OUTPUT_EDGES = (1, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 448, 512, 640, 768, 1025)
# One row for each input bin, one column for each output bin.
COUNTS = (
    (0, 4, 19, 5, 6, 4, 5, 6, 3, 3, 4, 4, 9, 2, 2),
    (1, 1, 9, 34, 15, 4, 13, 18, 17, 10, 18, 17, 27, 10, 21),
    (2, 1, 1, 10, 8, 4, 20, 16, 23, 34, 21, 38, 40, 28, 27),
    (2, 5, 7, 17, 26, 34, 25, 29, 40, 73, 59, 52, 108, 58, 92),
    (0, 0, 11, 29, 14, 14, 21, 19, 23, 40, 32, 37, 101, 67, 81),
    (10, 3, 17, 41, 37, 14, 28, 17, 29, 47, 64, 51, 120, 90, 131),
    (4, 2, 12, 34, 25, 29, 21, 16, 15, 41, 41, 26, 60, 57, 92),
    (9, 7, 17, 37, 52, 19, 32, 32, 25, 30, 48, 41, 114, 75, 129),
    (3, 6, 14, 32, 30, 16, 29, 26, 18, 22, 50, 16, 67, 66, 86),
    (9, 13, 27, 50, 71, 32, 53, 28, 32, 48, 43, 51, 97, 54, 91),
    (11, 17, 26, 35, 41, 37, 45, 40, 43, 38, 29, 21, 69, 34, 63),
    (16, 18, 20, 73, 54, 61, 99, 67, 81, 76, 67, 74, 82, 38, 83),
    (19, 7, 16, 50, 62, 35, 65, 90, 89, 109, 125, 75, 116, 58, 80),
    (33, 19, 32, 88, 103, 79, 127, 140, 164, 195, 203, 178, 296, 173, 177),
    (25, 15, 38, 66, 87, 73, 121, 137, 152, 184, 188, 156, 248, 206, 262),
    (25, 10, 56, 98, 119, 101, 197, 274, 276, 331, 278, 238, 485, 297, 383),
    (22, 13, 52, 80, 65, 74, 150, 163, 230, 231, 253, 216, 351, 270, 382),
    (43, 13, 48, 142, 115, 124, 242, 288, 315, 458, 380, 347, 552, 422, 634),
    (27, 24, 54, 112, 75, 81, 221, 197, 261, 296, 268, 291, 424, 298, 513),
    (33, 27, 26, 118, 116, 125, 276, 333, 410, 386, 383, 342, 611, 455, 730),
    (34, 17, 21, 78, 82, 73, 165, 171, 239, 236, 180, 192, 257, 214, 296),
)
# fmt: on


def sharegpt_workload(num_requests: int, seed: int) -> Workload:
    """Return requests that all arrive at once. A bin is drawn by its count, then lengths uniformly inside it."""
    counts = np.array(COUNTS, dtype=np.float64)
    bins = random_stream(seed, "input_len").choice(counts.size, num_requests, p=counts.ravel() / counts.sum())
    rows, columns = np.unravel_index(bins, counts.shape)
    places = random_stream(seed, "output_len").random((num_requests, 2))
    return Workload(
        name=f"ShareGPT lengths, seed {seed}",
        arrival_ns=np.zeros(num_requests, dtype=np.int64),
        input_len=_inside(INPUT_EDGES, rows, places[:, 0]),
        output_len=_inside(OUTPUT_EDGES, columns, places[:, 1]),
    )


def _inside(edges: tuple[int, ...], bins: IntArray, places: FloatArray) -> IntArray:
    """Return `[n]` lengths, each at a place of 0 to 1 between the edges of its bin."""
    low, high = np.array(edges)[bins], np.array(edges)[bins + 1]
    lengths: IntArray = low + np.floor(places * (high - low)).astype(np.int64)
    return lengths
