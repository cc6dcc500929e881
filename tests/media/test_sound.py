"""Sound becomes the features that transformers makes, from any rate and format, window by window."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.signal
import soundfile
from tokenizers import AddedToken, Tokenizer, models

from neuronserve.server.errors import InvalidRequest
from neuronserve.server.media.config import MediaConfig
from neuronserve.server.media.sound import Resampler, SoundError, window
from neuronserve.server.media.speech import SpeechReader, speech_reader
from neuronserve.server.media.transcript import Segment, segments_of, subtitles, words_of
from neuronserve.server.text.tokenizer import Tokenizer as OwnTokenizer

RATE = 16_000
SPECIAL = ["startoftranscript", "en", "de", "translate", "transcribe", "startofprev", "nospeech", "notimestamps"]


def wave(seconds: float, rate: int = RATE, channels: int = 1) -> np.ndarray[Any, Any]:
    """Noise and a tone, [samples, channels]."""
    count = int(seconds * rate)
    noise = np.random.default_rng(0).standard_normal((count, channels)) * 0.1
    return (noise + 0.3 * np.sin(np.arange(count) * 2 * np.pi * 440 / rate)[:, None]).astype(np.float32)


def file_of(samples: np.ndarray[Any, Any], rate: int = RATE, kind: str = "WAV", subtype: str | None = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeechReader]:
    directory = tmp_path_factory.mktemp("whisper")
    options = {"feature_size": 80, "feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 30}
    (directory / "config.json").write_text(json.dumps({"model_type": "whisper", "suppress_tokens": [1, 2, -1, 999]}))
    (directory / "preprocessor_config.json").write_text(json.dumps(options))
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "c": 2}, merges=[]))
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in SPECIAL])
    made = speech_reader(directory, OwnTokenizer(backend), MediaConfig(max_audio_seconds=100.0))
    assert made is not None
    yield made
    made.close()


@pytest.mark.parametrize("rate", [8000, 11_025, 16_000, 22_050, 44_100, 48_000, 7919])
def test_resampling_is_scipys_whatever_the_window(rate: int) -> None:
    samples = wave(1.0, rate)[:, 0]
    expected = scipy.signal.resample_poly(samples.astype(np.float64), *Resampler.of(rate, RATE))
    for start, count in ((0, len(expected)), (320, 1000), (len(expected) - 7, 7)):
        got, total = window(file_of(samples, rate), start, count, RATE, 100.0)
        assert total == 1.0
        assert np.abs(got - expected[start : start + count][: len(got)]).max() < 2e-6
        assert len(got) >= count - 1  # a last sample that lies behind the end is not made


async def test_features_are_those_of_transformers(reader: SpeechReader) -> None:
    from transformers import WhisperFeatureExtractor

    samples = wave(41.5)[:, 0]
    for start, seconds in ((0.0, 30.0), (30.0, 11.5), (12.34, 29.16)):
        found, item = await reader.read(file_of(samples), start)
        begin = round(start * RATE)
        expected = WhisperFeatureExtractor()(
            samples[begin : begin + 30 * RATE], sampling_rate=RATE, return_tensors="np"
        )["input_features"][0]
        got = np.frombuffer(item.pixels, np.float32).reshape(item.shape)
        assert got.shape == (80, 3000)
        assert np.abs(got - expected).max() < 1e-5
        assert (found.seconds, found.total_seconds) == (seconds, 41.5)
        assert item.num_tokens == 1500


@pytest.mark.parametrize(
    "kind", [("FLAC", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "ALAW"), ("OGG", "VORBIS"), ("MP3", None)]
)
async def test_formats_and_channels(reader: SpeechReader, kind: tuple[str, str | None]) -> None:
    samples = wave(2.0, 44_100, channels=2)
    found, _ = await reader.read(file_of(samples, 44_100, *kind), 0.0)
    assert found.total_seconds == pytest.approx(2.0, abs=0.1)
    got, _ = window(file_of(samples, RATE, "FLAC", "PCM_16"), 0, 1000, RATE, 100.0)
    assert np.abs(got - samples.mean(axis=1)[:1000]).max() < 1e-4


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "must be WAV"),
        (b"RIFF....WAVEfmt no sound", "must be WAV"),
        (file_of(wave(1.0))[:60], "must be WAV|lasts 0|at least"),
        (file_of(wave(1.0), kind="AIFF"), "is AIFF; it must be WAV"),
        (file_of(wave(0.05)), "lasts 0.05 s; it must be at least 0.1 s"),
        (file_of(wave(120.0, 1000), 1000), "lasts 120 s; the limit is 100 s"),
        (file_of(wave(1.0, channels=9)), "has 9 channels; the limit is 8"),
        (file_of(np.full((RATE, 1), np.nan, np.float32)), "not finite"),
        (file_of(wave(1.0, 500), 500), "500 samples a second"),
    ],
)
async def test_a_bad_file_is_refused_with_its_reason(reader: SpeechReader, data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        await reader.read(data, 0.0)
    assert (caught.value.param, caught.value.code) == ("file", "invalid_audio")


def test_a_window_behind_the_end() -> None:
    with pytest.raises(SoundError, match="ends before second 2"):
        window(file_of(wave(1.0)), 2 * RATE, 100, RATE, 100.0)


def test_prompts_of_the_decoder(reader: SpeechReader) -> None:
    tokens = reader.tokens
    ids = {name: 3 + i for i, name in enumerate(SPECIAL)}
    assert tokens.prompt("de", "translate", True) == (ids["startoftranscript"], ids["de"], ids["translate"])
    assert tokens.prompt("en", "transcribe", False)[-1] == ids["notimestamps"]
    assert tokens.suppressed == (1, 2)
    assert tokens.first_time == 3 + len(SPECIAL)
    with pytest.raises(InvalidRequest, match="language is 'fr'; this model has de, en"):
        tokens.prompt("fr", "transcribe", True)


T = 100  # the token of 0.00 s


@pytest.mark.parametrize(
    ("token_ids", "segments", "covered"),
    [
        ([T, 1, 2, T + 50], [(0, 1, (1, 2))], 30),
        ([T, 1, T + 50, T + 50, 2, T + 100], [(0, 1, (1,)), (1, 2, (2,))], 30),
        ([T, 1, T + 50, T + 60, 2], [(0, 1, (1,))], 1),  # the second segment is not over
        ([T, 1, T + 50, T + 50], [(0, 1, (1,))], 1),
        ([1, 2], [(0, 30, (1, 2))], 30),
        ([T, 1], [(0, 30, (1,))], 30),
        ([T + 25, 1, T + 2000], [(0.5, 30, (1,))], 30),  # no time behind the window's end
        ([], [], 30),
        ([T], [], 30),
        ([T, T], [], 30),
    ],
)
def test_segments_of_a_window(token_ids: list[int], segments: list[Any], covered: float) -> None:
    found, seconds = segments_of(token_ids, T, 10.0, 30.0)
    assert found == [Segment(pytest.approx(10 + start), pytest.approx(10 + end), ids) for start, end, ids in segments]
    assert seconds == pytest.approx(covered)


def test_subtitles() -> None:
    parts = [(0.0, 1.5, " Hello --> you"), (3661.25, 3662.0, "b")]
    assert subtitles(parts, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello -> you\n\n2\n01:01:01,250 --> 01:01:02,000\nb\n\n"
    )
    assert subtitles(parts[1:], "vtt") == "WEBVTT\n\n01:01:01.250 --> 01:01:02.000\nb\n\n"


@pytest.mark.parametrize(
    ("pieces", "has_spaces", "words"),
    [
        (["Well", ",", " it", "'s", " “", "so", "”", "."], True, ["Well,", " it's", " “so”."]),
        ([" (", "a", ")", " -", " b", "!", " 1", "2"], True, [" (a)", " - b!", " 12"]),
        (["\ufffd", "你", "好", "。", "吗"], False, ["你", "好。", "吗"]),
        (["a", "\ufffd"], True, ["a\ufffd"]),
    ],
)
def test_words_of_tokens(pieces: list[str], has_spaces: bool, words: list[str]) -> None:
    """A piece that is half of a character is shown whole with the one behind it."""

    def decode(ids: Sequence[int]) -> str:
        return "".join(pieces[i] for i in ids).replace("\ufffd你", "你")

    found = words_of(range(len(pieces)), decode, has_spaces)
    assert [word for word, _, _ in found] == words
    assert found[0][1] == 0
    assert [first for _, first, _ in found[1:]] == [last + 1 for _, _, last in found[:-1]]
    assert found[-1][2] == len(pieces) - 1
