"""Decoding of sound: a window of a file, at the rate of the model and as its features. Runs in a limited process."""

from __future__ import annotations

import functools
import io
import logging
import sys
from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..text.limited_process import Handler, Work

if TYPE_CHECKING:
    import numpy.typing as npt

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")  # names of libsndfile
MAX_CHANNELS = 8
RATES = range(1000, 384_001)  # Hz
LEAST_SECONDS = 0.1  # OpenAI's
TIMEOUT_S = 20.0  # of one window
PREPARE_TIMEOUT_S = 60.0  # imports
MEMORY_BYTES = 2048 * 2**20  # beyond what the process starts with


class SoundError(Exception):
    """The sound cannot be read; `str()` is fit to be shown to a user."""


class SoundCall(msgspec.Struct, frozen=True):
    """A file, and where the window begins, in samples of the model's rate."""

    data: bytes
    start: int


class SoundWindow(msgspec.Struct, frozen=True):
    """Features of a window, padded to the model's length, and what of the file it has."""

    features: bytes  # float32, [mel, frames] in C order
    shape: tuple[int, ...]
    seconds: float  # of sound in the window
    total_seconds: float  # of the file


def sound_work(options: Mapping[str, Any], most_seconds: float) -> Work:
    """Return the work of a process that reads windows of sound; `options` are those of preprocessor_config.json."""
    prepare = functools.partial(_prepare, dict(options), most_seconds)
    return Work("the sound", prepare, TIMEOUT_S, PREPARE_TIMEOUT_S, MEMORY_BYTES, refusals=(SoundError,))


def _prepare(options: dict[str, Any], most_seconds: float) -> Handler:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # transformers would import it if it is installed
    logging.disable(logging.WARNING)  # that there is no torch
    from transformers.models.whisper.feature_extraction_whisper import WhisperFeatureExtractor

    known = {key: value for key, value in options.items() if not key.endswith(("_type", "processor_class"))}
    return functools.partial(_read, WhisperFeatureExtractor(**known), most_seconds)


def _read(extractor: Any, most_seconds: float, call: bytes) -> bytes:
    import numpy as np

    given = msgspec.msgpack.decode(call, type=SoundCall)
    rate: int = extractor.sampling_rate
    try:
        samples, total = window(given.data, given.start, extractor.n_samples, rate, most_seconds)
    except MemoryError as error:
        raise SoundError(f"takes more than {MEMORY_BYTES >> 20} MiB of memory") from error
    features = extractor(samples, sampling_rate=rate, return_tensors="np")["input_features"][0].astype(np.float32)
    made = SoundWindow(features.tobytes(), features.shape, len(samples) / rate, total)
    return msgspec.msgpack.encode(made)


def window(data: bytes, start: int, most: int, rate: int, most_seconds: float) -> tuple[npt.NDArray[Any], float]:
    """Return up to `most` mono samples from `start` on at `rate`, float32, and the seconds of the whole file.

    Channels are averaged. Raises SoundError.
    """
    import numpy as np
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            _require(file, most_seconds)
            resampler = Resampler.of(file.samplerate, rate)
            count = min(most, file.frames * resampler.up // resampler.down - start)
            if count <= 0:
                raise SoundError(f"ends before second {start / rate:g}")
            wanted = resampler.inputs(start, count)
            inputs = np.zeros(len(wanted), np.float32)
            first, last = max(0, wanted.start), min(file.frames, wanted.stop)
            file.seek(first)
            read = file.read(last - first, dtype="float32", always_2d=True)
            inputs[first - wanted.start :][: len(read)] = read.mean(axis=1)
            total = file.frames / file.samplerate
    except soundfile.SoundFileError as error:
        reason = str(error).removeprefix("Error opening <_io.BytesIO object").partition(": ")[2][:200]
        raise SoundError(f"must be {', '.join(FORMATS)}: {reason or 'it is damaged'}") from error
    if not np.isfinite(inputs).all():
        raise SoundError("has samples that are not finite")
    return resampler.outputs(start, count, inputs), total


def _require(file: Any, most_seconds: float) -> None:
    """Raise SoundError if the file is of an unknown format or beyond a limit."""
    if file.format not in FORMATS:
        raise SoundError(f"is {file.format}; it must be {', '.join(FORMATS)}")
    if file.channels > MAX_CHANNELS:
        raise SoundError(f"has {file.channels} channels; the limit is {MAX_CHANNELS}")
    if file.samplerate not in RATES:
        raise SoundError(f"has {file.samplerate} samples a second; the limits are {RATES[0]} and {RATES[-1]}")
    seconds = file.frames / file.samplerate
    if seconds > most_seconds:
        raise SoundError(f"lasts {seconds:.0f} s; the limit is {most_seconds:g} s")
    if seconds < LEAST_SECONDS:
        raise SoundError(f"lasts {seconds:g} s; it must be at least {LEAST_SECONDS:g} s")


if TYPE_CHECKING:
    import numpy.typing as npt

HALF_WIDTH = 10  # zero crossings of the sinc on either side
KAISER_BETA = 5.0  # both as in scipy.signal.resample_poly


class Resampler(NamedTuple):
    """Ratio of two rates, as output samples `up` for each `down` input samples: a windowed sinc, phase by phase."""

    up: int
    down: int

    @classmethod
    def of(cls, rate: int, wanted: int) -> Resampler:
        """Return the resampler from one rate to another, in Hz."""
        common = gcd(rate, wanted)
        return cls(wanted // common, rate // common)

    def inputs(self, start: int, count: int) -> range:
        """Return the input samples that `count` output samples from `start` on depend on; some may not exist."""
        half = HALF_WIDTH * max(self)
        first, last = (start * self.down - half) // self.up, ((start + count - 1) * self.down + half) // self.up
        return range(first, last + 2)

    def outputs(self, start: int, count: int, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return output samples `start` to `start + count`, float32, from the samples of `self.inputs`, float32."""
        import numpy as np

        if self.up == self.down:
            skipped = start - self.inputs(start, count).start
            return inputs[skipped : skipped + count]
        half, first = HALF_WIDTH * max(self), self.inputs(start, count).start
        place = np.arange(-half, half + 1)
        taps = np.sinc(place / max(self)) * np.kaiser(2 * half + 1, KAISER_BETA)
        taps = np.append(taps * (self.up / taps.sum()), np.zeros(self.up)).astype(np.float32)
        width = (2 * half) // self.up + 1
        windows = np.lib.stride_tricks.sliding_window_view(inputs, width)
        made = np.empty(count, np.float32)
        for phase in range(min(self.up, count)):
            centre = (start + phase) * self.down
            begin = -((half - centre) // self.up)  # first input within the sinc of the phase's first output
            own = taps[centre - begin * self.up + half :: -self.up][:width]
            own = np.append(own, np.zeros(width - len(own), np.float32))
            rows = windows[begin - first :: self.down][: -(-(count - phase) // self.up)]
            made[phase :: self.up] = rows @ own
        return made
