"""The folder of compiled kernels, kept from one start to the next.

Numba's cache does not notice changes in called functions, so the folder's name has a hash of the kernels' sources, of
the layouts they read, and of Numba's version; environments with the same sources share it. A package may bring compiled
kernels in `prebuilt/` (tools/precompile); a new folder begins with a copy of them. A file beside them for each CPU
level says what they were compiled for, so that a start can report why it compiles anyway.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numba
from numba.core.registry import cpu_target

from ...errors import SettingsError
from ...host.private_file import is_trusted, make_private_directory
from .jit import KERNELS, is_checked
from .target import use_target

LAYOUTS = tuple(KERNELS.parent / "device" / name for name in ("attention_layout.py", "layout.py"))
PREBUILT = KERNELS / "prebuilt"
ABOUT = ".level.json"  # suffix of the files that describe a prebuilt folder's kernels
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def source_hash() -> str:
    """Return a short hash of all sources that a kernel can depend on, and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in (*sorted(KERNELS.rglob("*.py")), *LAYOUTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def kernels_key() -> str:
    """Return a short hash of all that compiled kernels of this host and Python depend on."""
    use_target()
    return hashlib.sha256(f"{source_hash()} {_PYTHON} {_cpu()}".encode()).hexdigest()[:16]


def use_cache(directory: str, prebuilt: Path = PREBUILT, report: Callable[[str], None] = lambda _: None) -> Path:
    """Keep compiled kernels below `directory`, starting with the prebuilt ones. Must precede the first compilation.

    Reports a line if there are prebuilt kernels for another Numba, other sources or another CPU, and if files are not
    trusted because other users may have written them; those are compiled again. A folder that has kernels and cannot be
    written, as in an image, is used as it is: further kernels go to a temporary directory that lasts until this process
    ends. Raises SettingsError if such a folder has none.
    """
    path = Path(directory) / (source_hash() + ("-checked" if is_checked() else ""))
    try:
        if not path.exists():
            _begin_cache(path, prebuilt / path.name)
            if (why := _why_not_prebuilt(prebuilt, path.name)) is not None:
                report(f"the kernels in {prebuilt} are not used: {why}")
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        if not _has_kernels(path):
            reason = f"kernel_cache_dir is {directory}: cannot write there: {error.strerror}"
            raise SettingsError(f"{reason}; --kernel-cache-dir names another directory") from error
        path = _overlay(path)
    if num_untrusted := sum(not is_trusted(file.stat()) for file in path.rglob("*.nb[ic]") if file.exists()):
        report(f"{num_untrusted} files in {path} are not used: another user owns them or any user may write to them")
    numba.config.CACHE_DIR = str(path)
    return path


def mark_prebuilt(path: Path) -> None:
    """Record in a prebuilt folder that it has all kernels for this process's CPU level."""
    about = {"numba": numba.__version__, "python": _PYTHON, "cpu": _cpu()}
    name = f"{_cpu().replace(',', '')}-py{_PYTHON}{ABOUT}"
    (path / name).write_text(json.dumps(about) + "\n")


def _why_not_prebuilt(prebuilt: Path, name: str) -> str | None:
    """Return why the prebuilt kernels cannot be used; None if they can, or there are none."""
    found = [(file.parent.name, json.loads(file.read_text())) for file in sorted(prebuilt.glob(f"*/*{ABOUT}"))]
    if not found:
        return None
    built = [about for _, about in found]
    if numba.__version__ not in (versions := {about["numba"] for about in built}):
        return f"they were compiled by Numba {', '.join(sorted(versions))}, this is {numba.__version__}"
    here = [about for folder, about in found if folder == name]
    if not here:
        return "they were compiled from other sources"
    if _PYTHON not in (versions := {about["python"] for about in here}):
        return f"they were compiled for Python {', '.join(sorted(versions))}, this is {_PYTHON}"
    if _cpu() not in (levels := {about["cpu"] for about in here if about["python"] == _PYTHON}):
        return f"they were compiled for {' and '.join(sorted(levels))}, this host needs {_cpu()}"
    return None


def _cpu() -> str:
    """Return the CPU that Numba compiles for, with the features beyond its level."""
    _, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{cpu} {features}".strip()


def _has_kernels(path: Path) -> bool:
    """Return whether the folder has kernels that this process can read; a folder it may not enter has none."""
    return any(name.endswith(".nbi") for _, _, names in os.walk(path) for name in names)


def _overlay(path: Path) -> Path:
    """Return a temporary folder with links to the files of `path`; Numba replaces a link, never its target."""
    top = Path(tempfile.mkdtemp(prefix="neuronserve-kernels-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    for file in path.rglob("*.nb[ic]"):
        link = top / file.relative_to(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    return top


def _begin_cache(path: Path, prebuilt: Path) -> None:
    """Create the folder with a copy of `prebuilt`, atomically: other processes may be starting too."""
    make_private_directory(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as scratch:
        copy = Path(scratch, path.name)
        if prebuilt.is_dir():
            shutil.copytree(prebuilt, copy, copy_function=shutil.copyfile)
        else:
            copy.mkdir()
        with contextlib.suppress(OSError):  # another process was first
            copy.rename(path)
