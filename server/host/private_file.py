"""Files and directories that other users of the host may neither read nor write, and whether they could have."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

ROOT_USER = 0
_FILE, _DIRECTORY = 0o600, 0o700
_FLAGS = {"wb": os.O_TRUNC, "ab": os.O_APPEND, "xb": os.O_EXCL}


def is_trusted(status: os.stat_result) -> bool:
    """Whether a file is this user's or root's, and others cannot write to it.

    A group may: Kubernetes gives the files of a volume to the group of a pod (fsGroup), and lets it write.
    """
    return status.st_uid in (ROOT_USER, os.geteuid()) and not status.st_mode & stat.S_IWOTH


def open_private(path: Path, mode: Literal["wb", "ab", "xb"]) -> BinaryIO:
    """Open a file for writing; a new one is this user's alone, and so is an old one of this user from now on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | _FLAGS[mode], _FILE)
    tighten(path)
    return os.fdopen(descriptor, mode)


def tighten(path: Path) -> None:
    """Take the rights of others from a file or directory of this user; of what has setgid the group keeps its own."""
    status = path.stat()
    if status.st_uid == os.geteuid():
        kept = 0o7770 if status.st_mode & stat.S_ISGID else 0o7700
        if status.st_mode & 0o7777 & ~kept:
            with contextlib.suppress(PermissionError):  # a volume without modes
                path.chmod(status.st_mode & kept)


def make_private_directory(path: Path) -> None:
    """Make a directory that is this user's alone, unless it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(_DIRECTORY)
        return
    if not path.is_dir():
        path.mkdir()  # raises
