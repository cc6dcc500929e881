"""What a checkpoint calls the modules of a model, and how it stores them: a family's own words for the graph's.

The graph names modules as Llama does: model.embed_tokens, model.layers.N.self_attn.q_proj, model.layers.N.mlp.up_proj.
A family that calls them otherwise sets `ModelSpec.names`: each key of `words` is a run of whole words between dots,
and stands for its value wherever the graph has it, the longest run first. So {"model.layers": "transformer.h",
"mlp.up_proj": "mlp.c_fc"} makes transformer.h.7.mlp.c_fc of layer 7. Modules that are computed side by side and have
one name are one module, whose rows they are in order: {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}.
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
    """Names and form of one family's tensors. `Names.of` makes them of a mapping."""

    words: tuple[tuple[str, str], ...] = ()
    prefix: str = "model."  # before all names but the output layer's; files of the model without one leave it out
    leftovers: tuple[str, ...] = (ROPE_FREQUENCIES,)  # ends of names in old files whose values follow from the rest
    take_turns: bool = False  # modules of one name are not one after the other: each head's q, k and v are
    is_transposed: bool = False  # the matrices of layers are stored [inputs, outputs]
    fused: FusedExperts = "outputs"  # of experts in one tensor: what comes first, and how gate and up share outputs

    old_names: tuple[tuple[str, str], ...] = ()  # of tensors in older files, with those of today
    old_endings: tuple[tuple[str, str], ...] = ()  # of such names, with those of today

    @classmethod
    def of(cls, words: Mapping[str, str], prefix: str, leftovers: tuple[str, ...] = (ROPE_FREQUENCIES,)) -> Names:
        """Names where `words` stand for the graph's, in a model whose names begin with `prefix`."""
        return cls(tuple(words.items()), prefix, leftovers)

    def module(self, name: str) -> str:
        """The checkpoint's name of the module that the graph calls `name`."""
        return _module(self.words, name)


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
