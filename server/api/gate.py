"""Admission of requests by expected wait and by limits of their keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ..link.groups import EngineGroups
from ..link.stream import TokenStream
from ..types import Request
from .admission import Admission
from .keys.use import KeyUse


class Gate:
    """Admission to the engines."""

    def __init__(self, admission: Admission, engines: EngineGroups) -> None:
        self._admission, self._engines = admission, engines

    def check(self, requests: Sequence[Request], rank: int | None, use: KeyUse, num_prompt_tokens: int) -> None:
        """Raise the error that `entered` would raise."""
        self._admission.check(requests, rank)
        use.check(num_prompt_tokens)

    @contextlib.contextmanager
    def entered(
        self, requests: Sequence[Request], rank: int | None, use: KeyUse, num_prompt_tokens: int
    ) -> Iterator[TokenStream]:
        """Return the stream of requests that arrive together, if they are admitted.

        Raises Overloaded when they would wait too long, RateLimited beyond a limit of their key, and EngineDead.
        """
        self._admission.check(requests, rank)
        use.begin(num_prompt_tokens)
        try:
            with self._engines.submit(requests, rank) as stream:
                yield stream
        finally:
            use.end()
