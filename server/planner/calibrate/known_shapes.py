"""Dimensions of well-known public models, for rows that name a model and leave its shape empty. A table, no formulas.

Source of every line: the `config.json` published with the model's weights.
"""

from __future__ import annotations

import re

from server.cost.shape import CostShape

PARAMS_TOLERANCE = 0.12  # a row's stated size may differ from the shape's by this share before the name is doubted

# Name as a pattern over lower-case names with "-", "_" and spaces removed: the first that matches is taken.
# layers, hidden, heads, KV heads, head dim, feed-forward, vocabulary[, matrices[, experts, experts per token]]
_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"mixtral8x7b", (32, 4096, 32, 8, 128, 14336, 32000, 3, 8, 2)),
    (r"mixtral8x22b", (56, 6144, 48, 8, 128, 16384, 32768, 3, 8, 2)),
    (r"qwen330ba3b", (48, 2048, 32, 4, 128, 768, 151936, 3, 128, 8)),
    (r"codellama7b", (32, 4096, 32, 32, 128, 11008, 32016)),
    (r"codellama13b", (40, 5120, 40, 40, 128, 13824, 32016)),
    (r"codellama34b", (48, 8192, 64, 8, 128, 22016, 32000)),
    (r"codellama70b", (80, 8192, 64, 8, 128, 28672, 32016)),
    (r"tinyllama", (22, 2048, 32, 4, 64, 5632, 32000)),
    (r"llama27b", (32, 4096, 32, 32, 128, 11008, 32000)),
    (r"llama213b", (40, 5120, 40, 40, 128, 13824, 32000)),
    (r"llama270b", (80, 8192, 64, 8, 128, 28672, 32000)),
    (r"llama3\.21b", (16, 2048, 32, 8, 64, 8192, 128256)),
    (r"llama3\.23b", (28, 3072, 24, 8, 128, 8192, 128256)),
    (r"llama3(\.1)?8b", (32, 4096, 32, 8, 128, 14336, 128256)),
    (r"llama3(\.[13])?70b", (80, 8192, 64, 8, 128, 28672, 128256)),
    (r"(mistral|zephyr)7b", (32, 4096, 32, 8, 128, 14336, 32000)),
    (r"mistralnemo", (40, 5120, 32, 8, 128, 14336, 131072)),
    (r"mistralsmall.*(2409|22b)", (56, 6144, 48, 8, 128, 16384, 32768)),
    (r"mistralsmall", (40, 5120, 32, 8, 128, 32768, 131072)),
    (r"qwen2\.5(coder|math)?0\.5b", (24, 896, 14, 2, 64, 4864, 151936)),
    (r"qwen2\.5(coder|math)?1\.5b", (28, 1536, 12, 2, 128, 8960, 151936)),
    (r"qwen2\.5(coder|math)?3b", (36, 2048, 16, 2, 128, 11008, 151936)),
    (r"(qwen2(\.5)?(coder|math)?|distillqwen)7b", (28, 3584, 28, 4, 128, 18944, 152064)),
    (r"(qwen2\.5(coder)?|distillqwen)14b", (48, 5120, 40, 8, 128, 13824, 152064)),
    (r"(qwen2\.5(coder)?|distillqwen|qwq)32b", (64, 5120, 40, 8, 128, 27648, 152064)),
    (r"qwen2(\.5)?72b", (80, 8192, 64, 8, 128, 29568, 152064)),
    (r"qwen30\.6b", (28, 1024, 16, 8, 128, 3072, 151936)),
    (r"qwen31\.7b", (28, 2048, 16, 8, 128, 6144, 151936)),
    (r"qwen34b", (36, 2560, 32, 8, 128, 9728, 151936)),
    (r"qwen38b", (36, 4096, 32, 8, 128, 12288, 151936)),
    (r"qwen314b", (40, 5120, 40, 8, 128, 17408, 151936)),
    (r"qwen332b", (64, 5120, 64, 8, 128, 25600, 151936)),
    (r"granite3\.\d2b", (40, 2048, 32, 8, 64, 8192, 49155)),
    (r"granite3\.\d8b", (40, 4096, 32, 8, 128, 12800, 49155)),
    (r"smollm33b", (36, 2048, 16, 4, 128, 11008, 128256)),
    (r"phi3mini", (32, 3072, 32, 32, 96, 8192, 32064)),
    (r"phi4(?!mini)", (40, 5120, 40, 10, 128, 17920, 100352)),
    (r"opt13b", (40, 5120, 40, 40, 128, 20480, 50272, 2)),
    (r"opt30b", (48, 7168, 56, 56, 128, 28672, 50272, 2)),
    (r"opt66b", (64, 9216, 72, 72, 128, 36864, 50272, 2)),
    (r"gptj6b", (28, 4096, 16, 16, 256, 16384, 50400, 2)),
    (r"gptneox20b", (44, 6144, 64, 64, 96, 24576, 50432, 2)),
    (r"bloom7b1", (30, 4096, 32, 32, 128, 16384, 250880, 2)),
)


def known_shape(name: str, params_b: float | None) -> CostShape | None:
    """The shape of the model called `name`, or None when it is not known or `params_b` contradicts it."""
    plain = re.sub(r"[-_\s]", "", name.lower())
    for pattern, numbers in _SHAPES:
        if re.search(pattern, plain):
            shape = CostShape(*numbers)
            return shape if params_b is None or size_error(shape, params_b) <= PARAMS_TOLERANCE else None
    return None


def size_error(shape: CostShape, params_b: float) -> float:
    """Relative distance of the shape's size from `params_b` billions, with the output layer tied or not."""
    untied = shape.num_params
    tied = untied - shape.vocab_size * shape.hidden_size
    return min(abs(size / 1e9 / params_b - 1) for size in (untied, tied))
