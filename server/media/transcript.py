"""Transcripts: segments in the tokens of a window, and subtitles. Pure functions.

Whisper writes times as tokens around each segment, 0.02 s apart. Where a window ends in the middle of a segment, the
next window begins at that segment (Radford et al. 2022, section 3.8).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

SECONDS_PER_TOKEN = 0.02
OPENING, CLOSING = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # marks
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})  # languages
BROKEN = "\ufffd"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a transcript, in seconds of the file. `token_ids` have no times."""

    start: float
    end: float
    token_ids: tuple[int, ...]


def segments_of(
    token_ids: Sequence[int], first_time: int, offset: float, seconds: float
) -> tuple[list[Segment], float]:
    """Return the segments of a window, and the seconds of it that they cover; the next window begins there.

    `first_time` is the token of 0.00, and larger ids are later times. The window begins at `offset` and has `seconds`
    of sound.
    """
    is_time = [token_id >= first_time for token_id in token_ids]
    cuts = [i for i in range(1, len(token_ids)) if is_time[i - 1] and is_time[i]]
    ends_whole = is_time[-2:] == [False, True] or not cuts
    if ends_whole:
        cuts.append(len(token_ids))
    segments, begin = [], 0
    for cut in cuts:
        part = token_ids[begin:cut]
        times = [(token_id - first_time) * SECONDS_PER_TOKEN for token_id in part if token_id >= first_time]
        words = tuple(token_id for token_id in part if token_id < first_time)
        start = times[0] if len(times) > 1 or (times and part[0] >= first_time) else 0.0
        end = times[-1] if times and times[-1] > start else seconds
        if words:
            segments.append(Segment(offset + min(start, seconds), offset + min(end, seconds), words))
        begin = cut
    covered = 0.0 if ends_whole else (token_ids[cuts[-1] - 1] - first_time) * SECONDS_PER_TOKEN
    return segments, min(covered, seconds) or seconds


def words_of(
    token_ids: Sequence[int], decode: Callable[[Sequence[int]], str], has_spaces: bool
) -> list[tuple[str, int, int]]:
    """Return the words of a segment, each with the places of its first and its last token.

    Where the language `has_spaces`, a word begins with one or is punctuation, otherwise every character is one. Marks
    belong to the word that they open or close.
    """
    words, first = [("", 0, 0)], 0
    for last in range(len(token_ids)):
        text, before = decode(token_ids[first : last + 1]), words[-1][0]
        if text.endswith(BROKEN) and last + 1 < len(token_ids):
            continue  # in the middle of a character
        continues = has_spaces and text[:1] != " " and text.strip() not in string.punctuation
        opened = before[:1] in ("", " ") and before.strip() in OPENING
        if continues or opened or (text in CLOSING and before[-1:] != " "):
            words[-1] = (before + text, words[-1][1], last)
        else:
            words.append((text, first, last))
        first = last + 1
    return words


def subtitles(segments: Iterable[tuple[float, float, str]], kind: str) -> str:
    """Return segments (start, end, text) as a file of `srt` or `vtt`."""
    return "".join(_subtitles(segments, kind))


def _subtitles(segments: Iterable[tuple[float, float, str]], kind: str) -> Iterator[str]:
    if kind == "vtt":
        yield "WEBVTT\n\n"
    for number, (start, end, text) in enumerate(segments, 1):
        mark = "," if kind == "srt" else "."
        head = f"{number}\n" if kind == "srt" else ""
        yield f"{head}{_clock(start, mark)} --> {_clock(end, mark)}\n{text.strip().replace('-->', '->')}\n\n"


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"
