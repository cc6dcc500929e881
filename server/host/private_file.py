"""Files and directories that other users of the host can neither read nor write, and the check that they could not."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO, Literal

ROOT_USER = 0
_FILE, _DIRECTORY = 0o600, 0o700
_FLAGS = {"wb": os.O_TRUNC, "ab": os.O_APPEND, "xb": os.O_EXCL}


def is_trusted(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user or root, and others cannot write to it.

    Its group may: Kubernetes gives the files of a volume to the group of a pod (fsGroup), with write access.
    """
    return status.st_uid in (ROOT_USER, os.geteuid()) and not status.st_mode & stat.S_IWOTH


def open_private(path: Path, mode: Literal["wb", "ab", "xb"]) -> BinaryIO:
    """Open a file for writing, and take the access of other users from it if this user owns it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | _FLAGS[mode], _FILE)
    tighten(path)
    return os.fdopen(descriptor, mode)


def open_locked(path: Path) -> int | None:
    """Open a private file for reading and writing, made if need be, and lock it until its descriptor is closed.

    Returns None when another process has locked it. Raises OSError when it cannot be opened, is no plain file, or
    others could have written to it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not is_trusted(status):
            raise PermissionError(errno.EPERM, "it is not a private file", str(path))
        tighten(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def tighten(path: Path) -> None:
    """Take the access of others from a file or directory of this user; with setgid the group keeps its access."""
    status = path.stat()
    if status.st_uid == os.geteuid():
        kept = 0o7770 if status.st_mode & stat.S_ISGID else 0o7700
        if status.st_mode & 0o7777 & ~kept:
            with contextlib.suppress(PermissionError):  # a volume without modes
                path.chmod(status.st_mode & kept)


def make_private_directory(path: Path) -> None:
    """Make a directory that only this user can use, unless it exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(_DIRECTORY)
        return
    if not path.is_dir():
        path.mkdir()  # raises
