"""File with a server's address while it is ready, so that the starter need not read its log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import StartError
from ..host.private_file import open_private


class ReadyFile:
    """One file, written atomically. Without a path nothing is written."""

    def __init__(self, path: Path | None) -> None:
        """Remove the file of a killed server. Raises StartError when the file could not be written."""
        self._path = path
        if path is None:
            return
        try:
            path.unlink(missing_ok=True)
            self._write("")
            self._partial.unlink()
        except OSError as error:
            raise StartError(f"--ready-file: cannot write {str(path)!r}: {error.strerror}") from error

    @property
    def _partial(self) -> Path:
        assert self._path is not None
        return self._path.with_name(f"{self._path.name}.{os.getpid()}")

    def write(self, url: str, **facts: Any) -> None:
        """Write that the server is ready at `url` (`http://HOST:PORT`)."""
        if self._path is None:
            return
        port = int(url.rpartition(":")[2])
        content = {"url": url, "port": port, "pid": os.getpid(), "version": __version__, **facts}
        self._write(json.dumps(content) + "\n")
        self._partial.replace(self._path)

    def _write(self, text: str) -> None:
        with open_private(self._partial, "wb") as file:
            file.write(text.encode())

    def remove(self) -> None:
        """Remove the file, because the server is no longer ready."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
