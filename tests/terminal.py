"""A command on a pseudo-terminal, and a person who reads and types there."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import selectors
import subprocess
import time
from collections.abc import Iterator, Sequence
from fcntl import ioctl
from struct import pack
from termios import TIOCSWINSZ

from tests.api.serving import PATIENCE_S, ROOT, environment

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """Screen content without styles, and typed input."""

    def __init__(self, process: subprocess.Popen[bytes], file: int) -> None:
        self.process = process
        self._file = file
        self._raw = b""
        self._seen = 0  # characters of `shown` that were waited for

    @property
    def shown(self) -> str:
        return _STYLE.sub("", self._raw.decode(errors="replace")).replace("\r\n", "\n")

    def expect(self, words: str) -> str:
        """Wait until `words` are shown behind those waited for before; returns what is between."""
        deadline = time.monotonic() + PATIENCE_S
        while (place := self.shown.find(words, self._seen)) < 0:
            assert self._read(deadline), f"{words!r} is not there: {self.shown[self._seen :]!r}"
        before, self._seen = self.shown[self._seen : place], place + len(words)
        return before

    def expect_more(self) -> None:
        """Wait until anything is shown behind what was waited for."""
        while len(self.shown) <= self._seen:
            assert self._read(time.monotonic() + PATIENCE_S)

    def peek(self, words: str) -> str:
        """Wait like `expect`, without consuming `words`."""
        before = self.expect(words)
        self._seen -= len(words)
        return before

    def type(self, words: str) -> None:
        os.write(self._file, words.encode())

    def rest(self) -> str:
        """Return the screen's content until the command's end."""
        while self._read(time.monotonic() + PATIENCE_S):
            pass
        return self.shown[self._seen :]

    def _read(self, deadline: float) -> bool:
        """Read more; False at the end or when time is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._file, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return False
        with contextlib.suppress(OSError):  # as Linux ends a terminal that nobody has open
            data = os.read(self._file, 65536)
            self._raw += data
            return bool(data)
        return False


@contextlib.contextmanager
def terminal(argv: Sequence[str], columns: int = 100, **variables: str) -> Iterator[Terminal]:
    """Run `argv` on a terminal of its own, which SIGHUPs it at the end if it still runs."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, pack("HHHH", 40, columns, 0, 0))
    env = environment(TERM="xterm", **variables)
    process = subprocess.Popen(
        argv, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
