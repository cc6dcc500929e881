"""The `neuronserve` command, and `python -m neuronserve`."""

from __future__ import annotations

import os
import signal
import sys

from neuronserve.server.host.import_order import put_own_packages_first
from neuronserve.server.host.late_methods import make_methods_late


def main() -> int:
    """Run the command; returns the exit code."""
    # Processes that are started import nothing from the working directory. A client's command that `survive` runs does
    # not get the variable, which it knows by this value.
    os.environ.setdefault("PYTHONSAFEPATH", "neuronserve")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback, until the command takes it
    put_own_packages_first()
    make_methods_late()
    # Plugins of pydantic that are installed beside the server: it has no use for any, and looking for them in all that
    # is installed takes a fiftieth of a start's processor time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from neuronserve.cli import run_process

    return run_process()


if __name__ == "__main__":
    sys.exit(main())
