"""Shapes that a deployment is compiled for: the batch of decode, and the lengths of prefill and of decode.

Names are from NxD Inference: context encoding is prefill, token generation is decode.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import log2

from ..config.formats import Batching
from ..errors import SettingsError

SMALLEST_BUCKET = 128  # NxD Inference feature guide: automatic buckets are powers of two from here to the longest


@dataclass(frozen=True, slots=True)
class CompiledShapes:
    """Lengths that have a compiled graph, ascending. The last of each list is the longest that can be served."""

    batching: Batching
    slots: int  # sequences of a decode, busy or not
    context_encoding: tuple[int, ...]  # tokens of one prompt, or of one chunk of it
    token_generation: tuple[int, ...]  # positions of each slot

    @property
    def longest_chunk(self) -> int:
        """Largest number of tokens of one prompt in one graph; longer prompts are cut into chunks."""
        return self.context_encoding[-1]


@dataclass(frozen=True, slots=True)
class BucketLists:
    """Lengths that a user requests, or that a model was compiled for ahead of time. () = automatic."""

    context_encoding: tuple[int, ...] = ()
    token_generation: tuple[int, ...] = ()
    has_full_length: bool = False  # without requested lengths, decode has only the longest
    has_one_prompt: bool = False  # the same of prompts

    def completed(self, max_model_len: int) -> BucketLists:
        """Return the lists in ascending order, automatic ones filled in, with a decode bucket for the full length.

        Raises SettingsError for a length that no sequence can have.
        """
        for name, lengths in (("context_encoding", self.context_encoding), ("token_generation", self.token_generation)):
            for length in lengths:
                if not 1 <= length <= max_model_len:
                    raise SettingsError(f"{name}_buckets has {length}: 1 to max_model_len {max_model_len} is possible")
        context, tokens = self.context_encoding, self.token_generation
        return BucketLists(
            tuple(sorted(set(context))) or powers_of_two(max_model_len),
            tuple(sorted({*tokens, max_model_len})) if tokens else powers_of_two(max_model_len),
        )

    @property
    def longest(self) -> int:
        """Largest number of positions that a sequence may have."""
        return self.token_generation[-1]


def compiled_shapes(
    batching: Batching, slots: int, max_model_len: int, requested: BucketLists, ahead: BucketLists | None
) -> CompiledShapes:
    """Return the shapes that a server runs. `ahead`: the lengths that its model was compiled for ahead of time, if any.

    Without requested buckets prompts and decode have all lengths, or only the full one where `requested` says so.
    Raises SettingsError for a length that was not compiled.
    """
    if ahead is None:
        chosen = requested.completed(max_model_len)
    else:
        if max_model_len > ahead.longest:
            raise SettingsError(f"max_model_len is {max_model_len}: this model was compiled for {ahead.longest}")
        _require_compiled("context_encoding_buckets", requested.context_encoding, ahead.context_encoding)
        _require_compiled("token_generation_buckets", requested.token_generation, ahead.token_generation)
        longest = (smallest(ahead.token_generation, max_model_len),)
        chosen = BucketLists(
            tuple(sorted(set(requested.context_encoding))) or ahead.context_encoding,
            tuple(sorted({*requested.token_generation, *longest}))
            if requested.token_generation
            else ahead.token_generation,
        )
    tokens = chosen.token_generation
    if requested.has_full_length and not requested.token_generation:
        tokens = (smallest(tokens, max_model_len),)
    prompts = chosen.context_encoding
    if requested.has_one_prompt and not requested.context_encoding:
        prompts = prompts[-1:]
    return CompiledShapes(batching, slots, prompts, tokens)


def _require_compiled(name: str, requested: tuple[int, ...], ahead: tuple[int, ...]) -> None:
    for length in requested:
        if length not in ahead:
            raise SettingsError(f"{name} has {length}: this model was compiled for {', '.join(map(str, ahead))}")


def powers_of_two(longest: int) -> tuple[int, ...]:
    """Return the automatic buckets: 128, 256, ... and `longest`, without a power close below `longest`.

    The last power is below 2 ** round(log2(longest)), as `generate_buckets` of NxD Inference rounds it.
    """
    powers = (1 << power for power in range(SMALLEST_BUCKET.bit_length() - 1, round(log2(longest))))
    return (*powers, longest)


def smallest(buckets: tuple[int, ...], length: int, margin: int = 0) -> int:
    """Return the shortest of `buckets` (ascending) that holds `length` and `margin` free positions, or the longest."""
    assert length <= buckets[-1], f"{length} tokens are beyond the longest bucket {buckets[-1]}"
    return buckets[min(bisect_left(buckets, length + margin), len(buckets) - 1)]
