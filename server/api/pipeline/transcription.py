"""Transcription of one file: window by window, each a generation of its own, until its end is reached."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import exp
from typing import Literal

from ...errors import InvalidRequest
from ...media.sound import LEAST_SECONDS, SoundWindow
from ...media.speech import SpeechReader
from ...media.transcript import WITHOUT_SPACES, Segment, segments_of, words_of
from ...types import MediaItem, TranscriptRules
from ..http.origin import Origin
from ..service import Service
from ..wire.audio import AudioForm, SpeechRequest, TranscriptSegment, TranscriptWord
from .deltas import Delta, collect
from .generation import Generation
from .prompts import Prompt
from .rows import row_of
from .start import start
from .validate import validated

Task = Literal["transcribe", "translate"]
PREFERENCE = 100.0  # added to logits


@dataclass(slots=True)
class Transcription:
    """A file that is transcribed, and what has been written so far. `read_first` comes before anything else."""

    service: Service
    origin: Origin
    form: AudioForm
    data: bytes
    task: Task
    reader: SpeechReader
    language: str | None = None
    seconds: float = 0.0  # of the file
    segments: list[TranscriptSegment] = field(default_factory=list)
    words: list[TranscriptWord] = field(default_factory=list)
    text: str = ""
    num_sound_tokens: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    _first: tuple[SoundWindow, MediaItem] | None = None

    @property
    def has_times(self) -> bool:
        """Whether the model is to write times: for answers with segments, and to find its way through long files."""
        has_segments = self.form.response_format in ("srt", "vtt", "verbose_json")
        return has_segments or self.seconds > self.reader.window_seconds

    async def read_first(self) -> None:
        """Read the beginning of the file, and check the request. Raises InvalidRequest."""
        self._first = await self.reader.read(self.data, 0.0)
        self.seconds, self.language = self._first[0].total_seconds, self.form.language
        if self.reader.tokens.languages and self.language is None:
            self.language = await self._detected(self._first[1])
        self.reader.tokens.prompt(self.language, self.task, self.has_times)

    async def pieces(self) -> AsyncGenerator[str, None]:
        """Yield the text as it is written: by tokens if the file is one window, else by windows."""
        offset = 0.0
        while self.seconds - offset >= LEAST_SECONDS or not offset:
            window, item = self._first if self._first and not offset else await self.reader.read(self.data, offset)
            self._first = None
            generation = await self._window(item, is_first=not offset)
            if self.has_times:
                offset += await self._take_segments(generation, offset, window, item)
                yield self._added()
                continue
            async with aclosing(generation.deltas()) as batches:
                async for batch in batches:
                    text = "".join(delta.text for delta in batch)
                    self._count(generation, [*batch])
                    self.text += text if self.text else text.lstrip()
                    yield text
            return

    def _added(self) -> str:
        """Append the text of segments that `text` does not have yet, and return it."""
        whole = "".join(segment.text for segment in self.segments).strip()
        added = whole[len(self.text) :]
        self.text = whole
        return added

    async def _take_segments(
        self, generation: Generation, offset: float, window: SoundWindow, item: MediaItem
    ) -> float:
        """Run a window; add its segments, and return the seconds that they cover."""
        [delta] = await collect(generation.deltas())
        self._count(generation, [delta])
        ends = generation.planned[0].sampling.eos_token_ids
        written = [token_id for token_id in delta.token_ids if token_id not in ends]
        found, covered = segments_of(written, self.reader.tokens.first_time, offset, window.seconds)
        is_verbose = self.form.response_format == "verbose_json"
        no_speech = await self._no_speech(item) if is_verbose and found else 0.0
        decode = partial(self.service.served.tokenizer.decode, skip_special_tokens=True)
        logprob = sum(each.sampled for each in delta.logprobs) / max(1, len(delta.logprobs))
        if "word" in self.form.timestamp_granularities and found:
            ids = (*generation.prompts[0].token_ids, *written)[: self.service.model.info.max_model_len - 1]
            rules = self.reader.alignment(len(generation.prompts[0].token_ids), window)
            [aligned] = await collect((await self._generation(ids, item, 1, {}, rules)).deltas())
            self._take_words(found, written, [offset + each for each in row_of(aligned.row or b"")], decode)
        for segment in found:
            self.segments.append(self._segment(segment, decode(segment.token_ids), offset, (logprob, no_speech)))
        return covered

    def _take_words(
        self, found: list[Segment], written: list[int], times: list[float], decode: Callable[[Sequence[int]], str]
    ) -> None:
        """Add the words of a window's segments, given when each token of its transcript begins."""
        times = times + times[-1:] * (len(written) + 1 - len(times))
        places = (i for i, token_id in enumerate(written) if token_id < self.reader.tokens.first_time)
        for segment in found:
            own = [*islice(places, len(segment.token_ids))]
            for word, first, last in words_of(segment.token_ids, decode, self.language not in WITHOUT_SPACES):
                start, end = round(times[own[first]], 2), round(times[own[last] + 1], 2)
                self.words.append(TranscriptWord(word=word.strip(), start=start, end=end))

    def _segment(self, segment: Segment, text: str, seek: float, probs: tuple[float, float]) -> TranscriptSegment:
        data = text.encode()
        return TranscriptSegment(
            id=len(self.segments),
            seek=round(seek * 100),
            start=round(segment.start, 2),
            end=round(segment.end, 2),
            text=text,
            tokens=list(segment.token_ids),
            temperature=self.form.temperature,
            avg_logprob=probs[0],
            compression_ratio=len(data) / len(zlib.compress(data)),
            no_speech_prob=probs[1],
        )

    def _count(self, generation: Generation, deltas: list[Delta]) -> None:
        if not self.num_generated_tokens or self.has_times:
            self.num_prompt_tokens += sum(len(each.prompt.token_ids) for each in generation.planned)
            self.num_sound_tokens += sum(item.num_tokens for each in generation.prompts for item in each.media)
        self.num_generated_tokens += sum(len(delta.token_ids) for delta in deltas)

    async def _window(self, item: MediaItem, is_first: bool) -> Generation:
        tokens = self.reader.tokens
        ids = tokens.prompt(self.language, self.task, self.has_times)
        before: tuple[int, ...] = ()
        if self.form.prompt and is_first and tokens.previous is not None:
            text = self.service.model.tokenizer.encode(" " + self.form.prompt.strip(), False)
            before = (tokens.previous, *text[-(self.service.model.info.max_model_len // 2 - 1) :])
        logprobs = {"logprobs": 0} if self.form.response_format == "verbose_json" else {}
        fields: dict[str, object] = {"min_tokens": 1, **logprobs}
        return await self._generation((*before, *ids), item, None, fields, tokens.rules(self.has_times))

    async def _detected(self, item: MediaItem) -> str:
        """Return the language of a window: the likeliest of their tokens after the start of a transcript."""
        languages = self.reader.tokens.languages
        bias = {str(token_id): PREFERENCE for token_id in languages.values()}
        fields = {"temperature": 0.0, "logit_bias": bias}
        [delta] = await collect((await self._generation((self.reader.tokens.start,), item, 1, fields)).deltas())
        by_token = {token_id: language for language, token_id in languages.items()}
        return by_token.get(delta.token_ids[0], min(languages))

    async def _no_speech(self, item: MediaItem) -> float:
        """Return the probability that a window has no speech, in the place of its language."""
        token_id = self.reader.tokens.no_speech
        if token_id is None:
            return 0.0
        fields = {"temperature": 0.0, "logprobs": 0, "logprob_token_ids": [token_id]}
        [delta] = await collect((await self._generation((self.reader.tokens.start,), item, 1, fields)).deltas())
        at = delta.logprobs[0].top_token_ids.index(token_id)
        return exp(delta.logprobs[0].top_logprobs[at])

    async def _generation(
        self,
        ids: tuple[int, ...],
        item: MediaItem,
        most: int | None,
        fields: dict[str, object],
        rules: TranscriptRules | None = None,
    ) -> Generation:
        """Return the generation after a prompt of the decoder. Raises RequestError."""
        given = {"temperature": self.form.temperature, "seed": self.form.seed, **fields}
        body = SpeechRequest.model_validate({"model": self.form.model, **given})
        request = validated(self.origin, body, self.service)
        return await start(request, [Prompt(ids, None, "prompt", (item,), rules)], most)


def speech_of(service: Service) -> SpeechReader:
    """Return the reader of sound. Raises InvalidRequest if the model transcribes nothing."""
    model = service.model
    if model.speech is None:
        raise InvalidRequest(f"{model.info.facts.architecture} transcribes no sound.", "model", "unsupported_endpoint")
    return model.speech
