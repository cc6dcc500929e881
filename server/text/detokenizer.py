"""Incremental detokenization: incomplete characters and possible stop strings are held back.

The deltas of a stream concatenate to the decoding of all its ids, without an unfinished character at the end, cut at
the stop string that completes first.

`tokenizers.decoders.DecodeStream` gives the same deltas for whole characters, but repeats a prompt that ends inside a
character, and fails on byte-fallback ids that are no UTF-8. The tests show both.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import BROKEN, Tokenizer

CONTEXT_TOKENS = 6  # ids of the prompt that decide whether the first generated token has a leading space
MAX_WINDOW = 64  # limit of ids that are decoded again for each new one, if a model writes only broken characters


class TextStream:
    """Incremental decoding of one sequence.

    It decodes a small window of the last ids and compares the text with the text already returned for it, because a
    decoder may treat the first token specially (a leading space), and a character may span several tokens.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        tail = [i for i in prompt_token_ids[-4 * CONTEXT_TOKENS :] if not tokenizer.is_silent(i, skip_special_tokens)]
        self._window = tail[-CONTEXT_TOKENS:]
        self._given = tokenizer.decode_whole(self._window, skip_special_tokens)
        self._is_whole = self._given == self._decode()  # all text of the window has been returned

    def feed(self, token_id: int) -> str:
        """Add one id; return the text that can no longer change."""
        if self._tokenizer.is_silent(token_id, self._skip_special):
            return ""
        if self._is_whole and (whole := self._tokenizer.whole_text(token_id)) is not None:
            self._window, self._given = [token_id], whole
            return whole
        self._window.append(token_id)
        text = self._decode()
        final = self._final(text, token_id)
        delta = self._advance(final)
        if len(self._window) > MAX_WINDOW and self._tokenizer.is_byte(token_id):
            delta, final = delta + self._advance(text), text  # no character is that long
        if (delta and final == text) or len(self._window) > MAX_WINDOW:
            self._shift(has_broken_end=final != text)
        self._is_whole = final == text
        return delta

    def finish(self) -> str:
        """Return the rest of the text after the last id, without an unfinished character at the end."""
        return self._advance(self._tokenizer.decode_whole(self._window, self._skip_special))

    def _final(self, text: str, token_id: int) -> str:
        """Return the part of `text` that later ids cannot change."""
        if not self._tokenizer.is_byte(token_id):
            if not (text.endswith(BROKEN) and self._tokenizer.num_unfinished(self._window)):
                return text
            return text.removesuffix(BROKEN)  # an incomplete character at the end decodes to exactly one U+FFFD
        # A byte-fallback decoder turns a whole run of bytes into U+FFFD while its end is incomplete.
        return text.rstrip(BROKEN) if text.startswith(self._given) else self._given

    def _advance(self, text: str) -> str:
        delta = text[len(self._given) :]
        if delta:
            self._given = text
        return delta

    def _shift(self, has_broken_end: bool) -> None:
        """Shorten the window to its last id, or to a few if its end is incomplete; never cut a run of byte tokens."""
        start = max(0, len(self._window) - (8 if has_broken_end else 1))
        while (
            start > 0 and len(self._window) - start < MAX_WINDOW // 2 and self._tokenizer.is_byte(self._window[start])
        ):
            start -= 1
        self._window = self._window[start:]
        text = self._decode()
        self._given = self._final(text, self._window[-1]) if has_broken_end else text

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, self._skip_special)


class StopStrings:
    """Finds stop strings in a text as it arrives, and holds back only a tail that may become one."""

    def __init__(self, stop: Sequence[str], is_kept: bool = False) -> None:
        self._stop = tuple(stop)
        self._is_kept = is_kept
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, is_armed: bool = True) -> str:
        """Add text; return the text that may be sent. After a match, `matched` is set and the text is cut there.

        `is_armed` False: a stop string that completes inside this `text` is ignored (min_tokens).
        """
        if not self._stop:
            return text
        old = len(self._held)
        self._held += text
        if is_armed and (found := self._first_match(old)):
            start, self.matched = found
            cut = start + len(self.matched) if self._is_kept else start
            sent, self._held = self._held[:cut], ""
            return sent
        keep = self._possible_prefix()
        cut = len(self._held) - keep
        sent, self._held = self._held[:cut], self._held[cut:]
        return sent

    def finish(self) -> str:
        """Return the text that is still held back, when the sequence has ended without a stop string."""
        sent, self._held = self._held, ""
        return sent

    def _first_match(self, old: int) -> tuple[int, str] | None:
        """Return (start, string) of the match that completes first after `old` characters; on a tie, of the longest."""
        found = [(self._held.find(stop, max(0, old - len(stop) + 1)), stop) for stop in self._stop]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        return min(ends)[1:] if ends else None

    def _possible_prefix(self) -> int:
        """Return the length of the longest tail of the held text that is a proper prefix of a stop string."""
        longest = min(len(self._held), max(len(stop) for stop in self._stop) - 1)
        for size in range(longest, 0, -1):
            tail = self._held[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stop):
                return size
        return 0


class Detokenizer:
    """A sequence's text as deltas: a `TextStream`, cut by `StopStrings`."""

    def __init__(self, text: TextStream, stop: StopStrings, min_tokens: int = 0) -> None:
        self._text = text
        self._stop = stop
        self._min_tokens = min_tokens
        self._num_tokens = 0

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the text; None while there is none."""
        return self._stop.matched

    def feed(self, token_id: int) -> str:
        """Add one id; return the text to send now. Check `matched_stop` afterwards."""
        self._num_tokens += 1
        return self._stop.feed(self._text.feed(token_id), self._num_tokens >= self._min_tokens)

    def finish(self) -> str:
        """Return all text that is still held back when the sequence has ended. A stop string may complete in it."""
        tail = self._stop.feed(self._text.finish(), self._num_tokens >= self._min_tokens)
        return tail if self.matched_stop is not None else tail + self._stop.finish()
