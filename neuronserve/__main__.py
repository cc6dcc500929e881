"""The `neuronserve` command, and `python -m neuronserve`: puts its own packages first, then runs `server.cli`."""

from __future__ import annotations

import contextlib
import os
import signal
import site
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # where `server` and `loadtests` are, in a wheel and in a checkout
STANDARD = Path(site.__file__).parent  # where the standard library is


def main() -> int:
    """Run the command; returns the exit code."""
    # Processes that are started import nothing from the working directory. A client's command that `survive` runs does
    # not get the variable, which it knows by this value.
    os.environ.setdefault("PYTHONSAFEPATH", "neuronserve")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback, until the command takes it
    put_own_packages_first()

    from neuronserve.late_methods import make_methods_late

    make_methods_late()
    # Plugins of pydantic that are installed beside the server: it has no use for any, and looking for them in all that
    # is installed takes a fiftieth of a start's processor time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from server.cli import run_process

    return run_process()


def put_own_packages_first() -> None:
    """Order sys.path; processes that are spawned get this list too."""
    if str(ROOT) not in sys.path:  # as when an editable installation is found by a hook
        sys.path.append(str(ROOT))
    sys.path[:] = sorted(sys.path, key=_rank)


def _rank(entry: str) -> int:
    """Place of an entry of sys.path: the standard library, ourselves, what is installed, and what the caller added.

    Python itself puts PYTHONPATH first, and with it an application's own `server` or `tokenizers`.
    """
    path = Path(entry)
    with contextlib.suppress(OSError):  # a relative one, where the working directory is gone
        if path.resolve() == ROOT:
            return 1
    if any(path.is_relative_to(each) for each in site.getsitepackages()):
        return 2
    return 0 if path.is_relative_to(STANDARD) else 3


if __name__ == "__main__":
    sys.exit(main())
