"""Where compiled kernels are kept from one start to the next.

Numba's cache does not see changes in called files, so the cache folder is named by a hash of the sources of the kernels
and of the layouts they read, and of Numba's version. A package that was installed with compiled kernels
(tools/precompile) has them in `prebuilt/`; they are where a new cache folder begins.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import shutil
import tempfile
from pathlib import Path

import numba

from server.errors import SettingsError
from server.kernels.isa.jit import is_checked

KERNELS = Path(__file__).parent.parent
LAYOUTS = tuple(KERNELS.parent / "device" / name for name in ("attention_layout.py", "layout.py"))
PREBUILT = KERNELS / "prebuilt"


def source_hash() -> str:
    """Short hash over all sources that a kernel can depend on, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in (*sorted(KERNELS.rglob("*.py")), *LAYOUTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_cache(directory: str, prebuilt: Path = PREBUILT) -> Path:
    """Keep compiled kernels below `directory`, a new one beginning with the prebuilt; before the first compilation.

    One that has kernels and cannot be written, as an image's is, is used as it is: kernels that it lacks are kept in a
    temporary directory until this process ends. Raises SettingsError when it has none.
    """
    path = Path(directory) / (source_hash() + ("-checked" if is_checked() else ""))
    try:
        if not path.exists():
            _begin_cache(path, prebuilt / path.name)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        if not _has_kernels(path):
            reason = f"kernel_cache_dir is {directory}: cannot write there: {error.strerror}"
            raise SettingsError(f"{reason}; --kernel-cache-dir names another directory") from error
        path = _overlay(path)
    numba.config.CACHE_DIR = str(path)
    return path


def _has_kernels(path: Path) -> bool:
    return next(path.rglob("*.nbi"), None) is not None


def _overlay(path: Path) -> Path:
    """A temporary folder that begins with links to the files of `path`; Numba replaces a link, never what is behind."""
    top = Path(tempfile.mkdtemp(prefix="neuronserve-kernels-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    for file in path.rglob("*.nb[ic]"):
        link = top / file.relative_to(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    return top


def _begin_cache(path: Path, prebuilt: Path) -> None:
    """Make the folder with what `prebuilt` has, whole or not at all: other processes may be starting too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as scratch:
        copy = Path(scratch, path.name)
        if prebuilt.is_dir():
            shutil.copytree(prebuilt, copy, copy_function=shutil.copyfile)
        else:
            copy.mkdir()
        with contextlib.suppress(OSError):  # another process was first
            copy.rename(path)
