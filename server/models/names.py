"""Names of a model's modules in a checkpoint, and the form in which it stores them.

The graph names modules as Llama does: model.embed_tokens, model.layers.N.self_attn.q_proj, model.layers.N.mlp.up_proj.
A family with other names sets `ModelSpec.names`: each key of `words` is a run of whole words between dots, which is
replaced with its value, the longest run first. So {"model.layers": "transformer.h", "mlp.up_proj": "mlp.c_fc"} makes
transformer.h.7.mlp.c_fc of layer 7. Modules side by side that get one name are consecutive rows of one module:
{"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

ROPE_FREQUENCIES = ".rotary_emb.inv_freq"

FusedExperts = Literal["outputs", "inputs", "inputs, in turns"]


@dataclass(frozen=True, slots=True)
class Names:
    """Names and form of one family's tensors."""

    words: tuple[tuple[str, str], ...] = ()
    prefix: str = "model."  # of all names but the output layer's; files without an output layer leave it out
    leftovers: tuple[str, ...] = (ROPE_FREQUENCIES,)  # endings of tensors in old files that follow from the rest
    skipped: tuple[str, ...] = ()  # beginnings of names of modules that are not computed
    further: str = ""  # beginning of the names of the layers that predict further tokens; "" = those after the last
    take_turns: bool = False  # modules of one name alternate by KV head: its q, its k and its v, then those of the next
    blocks: int = 0  # q, v and k of one name follow one another in each of these blocks of heads
    is_transposed: bool = False  # the matrices of layers are stored [inputs, outputs]
    is_up_first: bool = False  # in one module of up and gate, up's rows come first
    fused: FusedExperts = "outputs"  # experts in one tensor: the first dimension, and how gate and up share outputs

    # Factors of weights that a file does not hold, by the graph's words: the weights are multiplied as they are read.
    factors: tuple[tuple[str, float], ...] = ()
    sine_tables: str = ""  # ending of tables of positions by sines, which files may leave out; "" = none
    has_last_sine: bool = False  # the frequencies of these tables end at 1 / base, instead of one before
    old_names: tuple[tuple[str, str], ...] = ()  # names of tensors in older files, each with the name of today
    old_endings: tuple[tuple[str, str], ...] = ()  # endings of names in older files, each with the ending of today

    @classmethod
    def of(cls, words: Mapping[str, str], prefix: str, leftovers: tuple[str, ...] = (ROPE_FREQUENCIES,)) -> Names:
        """Return names with these `words`, in a model whose names begin with `prefix`."""
        return cls(tuple(words.items()), prefix, leftovers)

    def module(self, name: str) -> str:
        """Return the checkpoint's name of the graph's module `name`."""
        return _module(self.words, name)

    def factor(self, name: str) -> float:
        """Return the factor of the weights of the graph's module `name`."""
        return next((factor for ending, factor in self.factors if name.endswith(f".{ending}")), 1.0)


LLAMA = Names()


@lru_cache(maxsize=1 << 16)  # the graph of a mixture of experts has tens of thousands of names
def _module(words: tuple[tuple[str, str], ...], name: str) -> str:
    if not words:
        return name
    runs = {tuple(key.split(".")): value for key, value in words}
    longest, have, found, at = max(map(len, runs)), name.split("."), [], 0
    while at < len(have):
        for length in range(min(longest, len(have) - at), 0, -1):
            if (run := tuple(have[at : at + length])) in runs:
                found.append(runs[run])
                break
        else:
            length = 1
            found.append(have[at])
        at += length
    return ".".join(found)
