"""Time by which an engine should report next: one double that its process writes and its parent reads.

Before each turn the engine writes when the turn should be over. So a long prefill is not taken for a hang, and a
stopped process is noticed soon. No message is sent: the parent reads the memory whenever it wants.
"""

from __future__ import annotations

import struct
from typing import Final

from ..host.shared_file import SharedFile

_FORMAT: Final = struct.Struct("=d")  # seconds of the host's monotonic clock, which all processes share
NUM_BYTES = _FORMAT.size  # of the file


class Heartbeat:
    """One double in a file that both processes have mapped."""

    def __init__(self, file: SharedFile) -> None:
        self._memory = file.map()

    def expect(self, until: float) -> None:
        """Write that the turn which begins now ends at time `until` at the latest."""
        _FORMAT.pack_into(self._memory, 0, until)

    @property
    def expected(self) -> float:
        """Time by which the engine should report next; 0 while it loads."""
        return float(_FORMAT.unpack_from(self._memory)[0])

    def close(self) -> None:
        """Unmap. May be called twice."""
        self._memory.close()


class StepLimit:
    """Longest time of a step: ten times the time that earlier steps predict from its prompt tokens."""

    SLACK = 10.0
    FLOOR_S = 0.5  # what a busy host may add to a turn

    def __init__(self, first_s: float) -> None:
        """`first_s`: seconds assumed for a token until one was measured."""
        self._step_s = self._token_s = first_s

    def seconds(self, num_prompt_tokens: int) -> float:
        """Return the longest time of a step with so many prompt tokens."""
        return self.FLOOR_S + self.SLACK * (self._step_s + self._token_s * num_prompt_tokens)

    def saw(self, num_prompt_tokens: int, seconds: float) -> None:
        """Record a step. Slower steps count at once, faster ones an eighth."""
        if num_prompt_tokens:
            self._token_s = _follow(self._token_s, max(0.0, seconds - self._step_s) / num_prompt_tokens)
        else:
            self._step_s = _follow(self._step_s, seconds)


def _follow(known: float, seen: float) -> float:
    return max(seen, known + (seen - known) / 8)
