"""Drafters: guesses of a sequence's next tokens from texts in which its last tokens occur. Pure; no model is run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from ...config.speculation import DraftMethod, SpeculationConfig
from ..sequence import Sequence as OpenSequence
from .text_index import TextIndex, match_length

_SUFFIX_WIDTH = 3  # tokens that must be repeated before the suffix drafter compares
_MOST_POOLED_TOKENS = 1 << 18  # tokens of other requests' outputs that are kept, about 50 MB
_END = -1  # follows each output in a pool; no token


class Drafter(Protocol):
    """Guesses what follows. `index` is of the sequence's own text, whose last token it does not hold yet."""

    width: int  # of the index of each sequence

    def propose(self, seq: OpenSequence, index: TextIndex, most: int) -> Sequence[int]:
        """Return up to `most` tokens that may follow the known tokens of `seq`; empty when nothing is known."""
        ...

    def close(self, seq: OpenSequence) -> None:
        """Learn from a sequence that has ended."""
        ...


class NgramDrafter:
    """Prompt lookup: what followed the longest repetition of the last tokens in the sequence's own text."""

    def __init__(self, config: SpeculationConfig) -> None:
        self.width, self._longest = config.prompt_lookup_min, config.prompt_lookup_max

    def propose(self, seq: OpenSequence, index: TextIndex, most: int) -> Sequence[int]:
        text = seq.token_ids
        best = length = 0
        for at in index.positions(text):
            found = match_length(text, at, text, self.width, self._longest)
            if found > length:
                best, length = at, found
                if length >= self._longest:
                    break
        if not best:
            return ()
        draft = text[best : best + most]
        return draft if len(draft) == most else (draft * most)[:most]  # a text that ends inside of it is in a loop

    def close(self, seq: OpenSequence) -> None:
        del seq


class SuffixDrafter:
    """Suffix decoding: the most frequent continuation of the last tokens, in the sequence's own text and in outputs of
    ended requests that share its prefix-cache salt and its adapter (Oliaro et al. 2025, arXiv 2411.04975).

    A draft ends where too few of the occurrences agree, and is as long as the repetition is.
    """

    def __init__(self, config: SpeculationConfig) -> None:
        self.width, self._config = _SUFFIX_WIDTH, config
        # So long that a draft of `spec_factor` times the length still fits in the depth.
        depth = config.suffix_decoding_max_tree_depth / (1 + config.suffix_decoding_max_spec_factor)
        self._longest = max(_SUFFIX_WIDTH, int(depth))
        self._pools: OrderedDict[tuple[str, str], _Pool] = OrderedDict()  # least recently used first
        self._num_pooled = 0  # tokens in all pools

    def propose(self, seq: OpenSequence, index: TextIndex, most: int) -> Sequence[int]:
        tail = seq.token_ids
        sources = [(tail, index)]
        if pool := self._pools.get(_owner(seq)):
            sources += pool.sources
        found = [
            _Place(match_length(text, at, tail, _SUFFIX_WIDTH, self._longest), text, at)
            for text, one in sources
            for at in one.positions(tail)
        ]
        if not found:
            return ()
        length = max(place.length for place in found)
        most = min(most, int(length * self._config.suffix_decoding_max_spec_factor))
        return _continued([p for p in found if p.length == length], most, self._config.suffix_decoding_min_token_prob)

    def close(self, seq: OpenSequence) -> None:
        output = seq.token_ids[seq.num_prompt_tokens :]
        if self._config.suffix_decoding_max_cached_requests and len(output) > _SUFFIX_WIDTH:
            pool = self._pools.setdefault(_owner(seq), _Pool(self._config.suffix_decoding_max_cached_requests))
            self._pools.move_to_end(_owner(seq))
            self._num_pooled += pool.add(output)
            while self._num_pooled > _MOST_POOLED_TOKENS and len(self._pools) > 1:
                self._num_pooled -= self._pools.popitem(last=False)[1].num_tokens


class _Place(NamedTuple):
    length: int  # of the repetition before it
    text: Sequence[int]
    at: int

    def token(self, draft: Sequence[int]) -> int:
        """Return the token that follows `draft` here; a text that ends inside of the draft goes on with the draft."""
        i, known = self.at + len(draft), len(self.text)
        return self.text[i] if i < known else draft[i - known]


class _Pool:
    """Outputs of one owner in two texts, of which the older is dropped when the newer one is full."""

    def __init__(self, max_outputs: int) -> None:
        self._max_outputs = max(1, max_outputs // 2)
        self._num_outputs = 0  # in the newer text
        self._texts: list[tuple[list[int], TextIndex]] = [([], TextIndex(_SUFFIX_WIDTH))]  # newer first

    @property
    def sources(self) -> list[tuple[list[int], TextIndex]]:
        """The texts with their indices."""
        return self._texts

    @property
    def num_tokens(self) -> int:
        return sum(len(text) for text, _ in self._texts)

    def add(self, output: Iterable[int]) -> int:
        """Add an output; return by how many tokens the pool has grown, less than 0 when it dropped some."""
        before = self.num_tokens
        if self._num_outputs >= self._max_outputs or len(self._texts[0][0]) >= _MOST_POOLED_TOKENS // 4:
            self._texts = [([], TextIndex(_SUFFIX_WIDTH)), self._texts[0]]
            self._num_outputs = 0
        text, index = self._texts[0]
        text += output
        text.append(_END)
        index.extend(text, len(text) - 1)
        self._num_outputs += 1
        return self.num_tokens - before


def _owner(seq: OpenSequence) -> tuple[str, str]:
    """Return what a sequence shares with those whose outputs it may see."""
    return seq.request.cache_salt, seq.request.lora


def _continued(places: list[_Place], most: int, least_share: float) -> list[int]:
    """Return the most frequent continuation of `places`, while its share of them is at least `least_share`."""
    draft: list[int] = []
    total = len(places)
    while len(draft) < most:
        tokens = [place.token(draft) for place in places]
        token = tokens[0] if len(tokens) == 1 else max(tokens, key=tokens.count)
        if token == _END or tokens.count(token) < least_share * total:
            break
        places = [place for place, each in zip(places, tokens, strict=True) if each == token]
        draft.append(token)
    return draft


DRAFTERS: dict[DraftMethod, Callable[[SpeculationConfig], Drafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
