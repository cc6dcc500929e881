"""Sound of requests for a model that transcribes: windows of a file, and the tokens that begin a transcript."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from ..errors import CheckpointError, InvalidRequest
from ..text.fair_threads import text_threads
from ..text.limited_pool import LimitedPool
from ..text.limited_process import Refusal
from ..text.tokenizer import Tokenizer, read_json
from ..types import MediaItem, TranscriptRules
from .config import MediaConfig
from .sound import SoundCall, SoundError, SoundWindow, sound_work

FAMILIES = frozenset({"whisper"})  # by model_type of config.json
INVALID = "invalid_audio"
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")


@dataclass(frozen=True, slots=True)
class SpeechTokens:
    """Tokens that tell the decoder what to write. A model of English alone has no languages and no tasks."""

    start: int
    no_timestamps: int
    previous: int | None  # before text that precedes the sound
    no_speech: int | None
    tasks: dict[str, int]
    languages: dict[str, int]  # by their codes
    suppressed: tuple[int, ...]  # never written
    begin_suppressed: tuple[int, ...] = ()  # not written first
    max_initial_time: int | None = None  # most steps from 0.00 s to the first time
    alignment_heads: tuple[tuple[int, int], ...] = ()  # layers and heads that follow the sound; () = not known

    @property
    def first_time(self) -> int:
        """The token of 0.00 s; larger ids are later times."""
        return self.no_timestamps + 1

    def rules(self, has_times: bool) -> TranscriptRules:
        """Return the limits of a transcript."""
        limits = self.suppressed, self.begin_suppressed
        return TranscriptRules(*limits, self.first_time if has_times else None, self.max_initial_time)

    def prompt(self, language: str | None, task: str, has_times: bool) -> tuple[int, ...]:
        """Return the tokens before a transcript. Raises InvalidRequest."""
        ids = [self.start]
        if self.languages:
            if language not in self.languages:
                known = ", ".join(sorted(self.languages))
                raise InvalidRequest(f"language is {str(language)[:40]!r}; this model has {known}.", "language")
            ids += [self.languages[language], self.tasks[task]]
        elif task != "transcribe" or language not in (None, "en"):
            raise InvalidRequest("language: this model transcribes English alone.", "language")
        return tuple(ids if has_times else [*ids, self.no_timestamps])


def speech_tokens(tokenizer: Tokenizer, suppressed: tuple[int, ...]) -> SpeechTokens:
    """Find the tokens by their names. Raises CheckpointError."""
    found = {name: tokenizer.token_id(f"<|{name}|>") for name in ("startoftranscript", "notimestamps")}
    for name, token_id in found.items():
        if token_id is None:
            raise CheckpointError("tokenizer.json", f"has no token '<|{name}|>'")
    tasks = {name: token_id for name in ("transcribe", "translate") if (token_id := tokenizer.token_id(f"<|{name}|>"))}
    names = ((token_id, tokenizer.token_text(token_id)) for token_id in range(tokenizer.vocab_size))
    languages = {match[1]: token_id for token_id, name in names if (match := _LANGUAGE.fullmatch(name))}
    no_speech = tokenizer.token_id("<|nospeech|>")
    return SpeechTokens(
        start=found["startoftranscript"] or 0,
        no_timestamps=found["notimestamps"] or 0,
        previous=tokenizer.token_id("<|startofprev|>"),
        no_speech=tokenizer.token_id("<|nocaptions|>") if no_speech is None else no_speech,
        tasks=tasks,
        languages=languages if len(tasks) > 1 else {},
        suppressed=suppressed,
    )


class SpeechReader:
    """Reads windows of sound for one model. To be used by one event loop."""

    def __init__(self, tokens: SpeechTokens, options: dict[str, Any], positions: int, config: MediaConfig) -> None:
        """`positions`: vectors that the encoder makes of a window."""
        self.tokens, self.config = tokens, config
        self.rate: int = options.get("sampling_rate", 16_000)
        self.window_seconds: float = options.get("chunk_length", 30)
        self._positions = positions
        self._threads = text_threads("sound")
        self._pool = LimitedPool(sound_work(options, config.max_audio_seconds), self._threads.most_each + 1)

    def start(self) -> None:
        """Start a process. Raises CheckpointError when the options of the features cannot be used."""
        try:
            self._pool.start()
        except Refusal as error:
            raise CheckpointError("preprocessor_config.json", str(error)) from error

    async def read(self, data: bytes, seconds: float) -> tuple[SoundWindow, MediaItem]:
        """Return the window of a file from `seconds` on, and its features for the engine. Raises InvalidRequest."""
        call = msgspec.msgpack.encode(SoundCall(data, round(seconds * self.rate)))
        try:
            window = msgspec.msgpack.decode(
                await self._threads.run(lambda: self._pool.reply(call).data), type=SoundWindow
            )
        except (SoundError, Refusal) as error:
            reason = str(error) if str(error).startswith("the sound ") else f"the sound {error}"
            raise InvalidRequest(f"file: {reason}.", "file", INVALID) from error
        digest = hashlib.sha256(repr(window.shape).encode() + window.features).digest()
        return window, MediaItem(digest, 0, self._positions, window.features, window.shape)

    def alignment(self, first: int, window: SoundWindow) -> TranscriptRules:
        """Return what to find of a window whose transcript begins at token `first` of a prompt."""
        frames = ceil(round(window.seconds / self.window_seconds * 2 * self._positions, 6))
        positions = min(max(1, frames // 2), self._positions)
        return TranscriptRules(aligned_heads=self.tokens.alignment_heads, aligned=(first, positions))

    def close(self) -> None:
        """End the processes."""
        self._threads.close()
        self._pool.close()


def speech_reader(directory: Path, tokenizer: Tokenizer, config: MediaConfig) -> SpeechReader | None:
    """Return a reader for the checkpoint; None if its family transcribes nothing. Raises CheckpointError."""
    model = read_json(directory / "config.json", dict[str, Any])
    if model.get("model_type") not in FAMILIES:
        return None
    options = read_json(directory / "preprocessor_config.json", dict[str, Any])
    defaults = read_json(directory / "generation_config.json", dict[str, Any])

    def known(name: str) -> tuple[int, ...]:
        return tuple(each for each in defaults.get(name, model.get(name)) or () if 0 <= each < tokenizer.vocab_size)

    sizes = model.get("decoder_layers", 0), model.get("decoder_attention_heads", 0)
    heads = tuple((layer, head) for layer, head in defaults.get("alignment_heads") or ())
    if wrong := [each for each in heads if not (0 <= each[0] < sizes[0] and 0 <= each[1] < sizes[1])]:
        reason = f"alignment_heads has {wrong[0]}: the decoder has {sizes[0]} layers of {sizes[1]} heads"
        raise CheckpointError("generation_config.json", reason)
    tokens = replace(
        speech_tokens(tokenizer, known("suppress_tokens")),
        begin_suppressed=known("begin_suppress_tokens"),
        max_initial_time=defaults.get("max_initial_timestamp_index"),
        alignment_heads=heads,
    )
    return SpeechReader(tokens, options, model.get("max_source_positions", 1500), config)
