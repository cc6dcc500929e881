"""Resampling of sound: a windowed sinc, computed phase by phase where output samples fall between input samples."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

HALF_WIDTH = 10  # zero crossings of the sinc on either side
KAISER_BETA = 5.0  # both as in scipy.signal.resample_poly


class Resampler(NamedTuple):
    """Ratio of two rates, as output samples `up` for each `down` input samples."""

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
