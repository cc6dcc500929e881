"""Where compiled kernels are kept from one start to the next.

Numba's cache does not see changes in called files, so the cache folder is named by a hash of the sources of the kernels
and of the layouts they read, and of Numba's version. A package that was installed with compiled kernels
(tools/precompile) has them in `prebuilt/`; they are where a new cache folder begins. Beside them stands what they are
for: a file for each CPU level, by whose absence a start can say why it compiles all the same.
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

from neuronserve.server.errors import SettingsError
from neuronserve.server.host.private_file import is_trusted, make_private_directory
from neuronserve.server.kernels.isa.jit import is_checked

KERNELS = Path(__file__).parent.parent
LAYOUTS = tuple(KERNELS.parent / "device" / name for name in ("attention_layout.py", "layout.py"))
PREBUILT = KERNELS / "prebuilt"
ABOUT = ".level.json"  # end of the names of files that say what a prebuilt folder's kernels are for
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def source_hash() -> str:
    """Short hash over all sources that a kernel can depend on, and numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in (*sorted(KERNELS.rglob("*.py")), *LAYOUTS):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def use_cache(directory: str, prebuilt: Path = PREBUILT, report: Callable[[str], None] = lambda _: None) -> Path:
    """Keep compiled kernels below `directory`, a new one beginning with the prebuilt; before the first compilation.

    A line is reported where kernels are prebuilt, and not for this Numba, these sources or this CPU; and where other
    users may have written some, which are compiled again.

    One that has kernels and cannot be written, as an image's is, is used as it is: kernels that it lacks are kept in a
    temporary directory until this process ends. Raises SettingsError when it has none.
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
        report(f"{num_untrusted} files in {path} are not used: they are another user's, or any user may write to them")
    numba.config.CACHE_DIR = str(path)
    return path


def mark_prebuilt(path: Path) -> None:
    """Note beside the kernels of a prebuilt folder that those of this process's CPU level are all there."""
    about = {"numba": numba.__version__, "python": _PYTHON, "cpu": _cpu()}
    name = f"{_cpu().replace(',', '')}-py{_PYTHON}{ABOUT}"
    (path / name).write_text(json.dumps(about) + "\n")


def _why_not_prebuilt(prebuilt: Path, name: str) -> str | None:
    """Why this process must compile although there are prebuilt kernels; None when it need not, or there are none."""
    found = [(file.parent.name, json.loads(file.read_text())) for file in sorted(prebuilt.glob(f"*/*{ABOUT}"))]
    if not found:
        return None
    built = [about for _, about in found]
    if numba.__version__ not in (versions := {about["numba"] for about in built}):
        return f"they are of Numba {', '.join(sorted(versions))}, and this is {numba.__version__}"
    here = [about for folder, about in found if folder == name]
    if not here:
        return "they are of other sources"
    if _PYTHON not in (versions := {about["python"] for about in here}):
        return f"they are of Python {', '.join(sorted(versions))}, and this is {_PYTHON}"
    if _cpu() not in (levels := {about["cpu"] for about in here if about["python"] == _PYTHON}):
        return f"they are for {' and '.join(sorted(levels))}, and this host's are for {_cpu()}"
    return None


def _cpu() -> str:
    """The CPU that Numba compiles for, and what it has beyond its level."""
    _, cpu, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{cpu} {features}".strip()


def _has_kernels(path: Path) -> bool:
    """Also of a folder that may not be entered, as another user's home: it has none for this process."""
    return any(name.endswith(".nbi") for _, _, names in os.walk(path) for name in names)


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
    make_private_directory(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".new-") as scratch:
        copy = Path(scratch, path.name)
        if prebuilt.is_dir():
            shutil.copytree(prebuilt, copy, copy_function=shutil.copyfile)
        else:
            copy.mkdir()
        with contextlib.suppress(OSError):  # another process was first
            copy.rename(path)
