"""Opening of files that a user named or wrote: only regular ones, as a FIFO or a device would block the reader."""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path) -> io.FileIO:
    """Open `path` for reading, unbuffered. Raises OSError with a `strerror` that suits a message."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = _KINDS.get(stat.S_IFMT(mode), "something else")
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
        return io.FileIO(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def why_unreadable(error: OSError) -> str:
    """Return why a file could not be read, as the end of a sentence about it."""
    if isinstance(error, FileNotFoundError):
        is_link = error.filename is not None and os.path.islink(error.filename)
        return "is a link to a file that does not exist" if is_link else "no such file"
    return f"cannot be read: {error.strerror}"


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read the whole of `path`. Raises OSError as `open_regular`, and when it has more than `max_bytes` bytes."""
    with open_regular(path) as file:
        found = bytearray()
        if os.fstat(file.fileno()).st_size <= max_bytes:
            while len(found) <= max_bytes and (block := file.read(max_bytes + 1 - len(found))):
                found += block
            if len(found) <= max_bytes:
                return bytes(found)
    raise OSError(errno.EFBIG, f"it is larger than the {max_bytes} bytes allowed", str(path))
