"""The `neuronserve` command, and `python -m neuronserve`."""

from __future__ import annotations

import os
import signal
import sys

from neuronserve.server.host.import_order import put_own_packages_first
from neuronserve.server.host.late_methods import make_methods_late


def main() -> int:
    """Run the command; returns the exit code."""
    # Child processes import nothing from the working directory. `survive` recognizes this value and does not pass it on
    # to a client's command.
    os.environ.setdefault("PYTHONSAFEPATH", "neuronserve")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the process without a traceback, until the command takes it
    put_own_packages_first()
    make_methods_late()
    # The server uses no plugins of pydantic, and the search for them takes a fiftieth of a start's processor time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from neuronserve.cli import run_process

    return run_process()


if __name__ == "__main__":
    sys.exit(main())
