"""Synthetic workloads: arrivals and lengths drawn from one seed, the same in a simulation and in a load test.

Each kind of value has its own random stream, so a seed gives the same lengths at another rate, and a longer workload
begins with the requests of a shorter one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..server.errors import SettingsError
from .arrivals import Arrivals
from .lengths import LengthRange, LengthTable
from .workload import MAX_REQUESTS, IntArray, Workload

# Kinds of drawn values. Random numbers depend on the positions in this list: add at its end.
Drawn = Literal[
    "arrivals", "input_len", "output_len", "prefix", "tokens", "prefix_tokens", "think_time", "lengths", "failures"
]
_DRAWN: tuple[Drawn, ...] = get_args(Drawn)


def random_stream(seed: int, drawn: Drawn, *keys: int) -> np.random.Generator:
    """Return the random stream of one kind of value, independent of all others. `keys` divide it further.

    Raises SettingsError for a negative seed.
    """
    if seed < 0:
        raise SettingsError(f"seed is {seed}: it must be at least 0")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_DRAWN.index(drawn), *keys)))


@dataclass(frozen=True, slots=True)
class SyntheticWorkload:
    """A workload of `num_requests` independent requests. The same fields give the same requests.

    Prompts begin with one of `num_prefixes` equally likely prefixes of `prefix_len` tokens, on top of `input_len`.
    """

    num_requests: int
    arrivals: Arrivals
    input_len: LengthRange
    output_len: LengthRange
    prefix_len: int = 0
    num_prefixes: int = 1
    seed: int = 0
    lengths: LengthTable | None = None  # pairs to use instead of `input_len` and `output_len`

    def __post_init__(self) -> None:
        """Raise SettingsError for impossible numbers."""
        if not 1 <= self.num_requests <= MAX_REQUESTS:
            raise SettingsError(f"the number of requests is {self.num_requests}: it is 1 to {MAX_REQUESTS}")
        for name, least in (("prefix_len", 0), ("num_prefixes", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} is {getattr(self, name)}: it must be at least {least}")

    def generate(self) -> Workload:
        """Return the requests. Raises SettingsError when their time exceeds what can be counted."""
        size = self.num_requests
        inputs, outputs = self._lengths(size)
        source = "" if self.lengths is None else f", lengths of {self.lengths.name}"
        return Workload(
            name=f"{self.arrivals}{source}, seed {self.seed}",
            arrival_ns=self.arrivals.times_ns(random_stream(self.seed, "arrivals"), size),
            input_len=self.prefix_len + inputs,
            output_len=outputs,
            prefixes=self._prefixes() if self.prefix_len else None,
            prefix_block=max(1, self.prefix_len),
        )

    def _lengths(self, size: int) -> tuple[IntArray, IntArray]:
        if self.lengths is not None:
            return self.lengths.draw(random_stream(self.seed, "lengths"), size)
        inputs = self.input_len.draw(random_stream(self.seed, "input_len"), size)
        return inputs, self.output_len.draw(random_stream(self.seed, "output_len"), size)

    def _prefixes(self) -> tuple[tuple[int, ...], ...]:
        names = random_stream(self.seed, "prefix").integers(self.num_prefixes, size=self.num_requests)
        return tuple((name,) for name in names.tolist())
