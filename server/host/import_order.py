"""Order of sys.path in the command's processes: modules of the caller's path never replace installed packages."""

from __future__ import annotations

import contextlib
import site
import sys
from pathlib import Path

# Folder that has `neuronserve`: site-packages, or the repository, where `neuronserve/server` is a link to `server`.
ROOT = Path(sys.modules["neuronserve"].__path__[0]).resolve().parent
STANDARD = Path(site.__file__).parent  # folder of the standard library


def put_own_packages_first() -> None:
    """Sort sys.path; processes that are spawned inherit the list."""
    if str(ROOT) not in sys.path:  # an editable installation is found by an import hook
        sys.path.append(str(ROOT))
    sys.path[:] = sorted(sys.path, key=_rank)


def _rank(entry: str) -> int:
    """Rank of an entry of sys.path: the standard library, this project, installed packages, the caller's entries.

    Python itself puts PYTHONPATH first, where an application may have its own `tokenizers`.
    """
    path = Path(entry)
    with contextlib.suppress(OSError):  # a relative entry whose working directory is gone
        if path.resolve() == ROOT:
            return 1
    if any(path.is_relative_to(each) for each in site.getsitepackages()):
        return 2
    return 0 if path.is_relative_to(STANDARD) else 3
