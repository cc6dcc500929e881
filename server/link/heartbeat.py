"""When an engine should be heard of next: two words of memory that its process writes and its parent reads.

The engine says before each turn by when that should be over, so a long prefill is no hang and a stopped process is one
soon. Nothing is sent: a reader looks at the memory whenever it wants, and a stopped process has nothing to do with it.
"""

from __future__ import annotations

import struct
from typing import Final

from neuronserve.server.host.shared_file import SharedFile

_FORMAT: Final = struct.Struct("=d")  # seconds of the host's monotonic clock, which all processes share
NUM_BYTES = _FORMAT.size  # of the file


class Heartbeat:
    """One double in a file that both processes have mapped."""

    def __init__(self, file: SharedFile) -> None:
        self._memory = file.map()

    def expect(self, until: float) -> None:
        """Say that the turn which begins now is over at time `until` at the latest."""
        _FORMAT.pack_into(self._memory, 0, until)

    @property
    def expected(self) -> float:
        """When the engine should be heard of next; 0 while it loads."""
        return float(_FORMAT.unpack_from(self._memory)[0])

    def close(self) -> None:
        """Unmap. May be called twice."""
        self._memory.close()


class StepLimit:
    """How long a step may take: ten times what those before it lead to expect, by its prompt tokens."""

    SLACK = 10.0
    FLOOR_S = 0.5  # what a busy host may add to any turn

    def __init__(self, first_s: float) -> None:
        """`first_s`: what a token is thought to take before any was seen."""
        self._step_s = self._token_s = first_s

    def seconds(self, num_prompt_tokens: int) -> float:
        """The longest that a step with so many prompt tokens may take."""
        return self.FLOOR_S + self.SLACK * (self._step_s + self._token_s * num_prompt_tokens)

    def saw(self, num_prompt_tokens: int, seconds: float) -> None:
        """A step is over. Slower ones count at once, faster ones a little each."""
        if num_prompt_tokens:
            self._token_s = _follow(self._token_s, max(0.0, seconds - self._step_s) / num_prompt_tokens)
        else:
            self._step_s = _follow(self._step_s, seconds)


def _follow(known: float, seen: float) -> float:
    return max(seen, known + (seen - known) / 8)
