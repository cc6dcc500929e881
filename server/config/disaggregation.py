"""Division of engines, or of instances, into those that compute prompts and those that decode."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import SettingsError

_FORM = re.compile(r"prefill:(\d{1,5}),decode:(\d{1,5})")


class Disaggregation(NamedTuple):
    """The first `num_prefill` compute a prompt and its first token, the other `num_decode` the tokens after it."""

    num_prefill: int
    num_decode: int

    @classmethod
    def parse(cls, text: str) -> Disaggregation:
        """Return the numbers of `prefill:P,decode:D`. Raises SettingsError for other texts and for 0."""
        found = _FORM.fullmatch(text.replace(" ", ""))
        numbers = (0, 0) if found is None else (int(found[1]), int(found[2]))
        if not all(numbers):
            raise SettingsError(f"disaggregate is {text!r}: it is prefill:P,decode:D with at least 1 of each")
        return cls(*numbers)

    @property
    def total(self) -> int:
        return self.num_prefill + self.num_decode

    def __str__(self) -> str:
        return f"prefill:{self.num_prefill},decode:{self.num_decode}"
