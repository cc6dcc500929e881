"""Command line of neuronserve, and the modules that an application may import in its own process.

`neuronserve.testing` and the pytest plugin import no part of the server; `__main__` runs it in a process of its own.
"""

from __future__ import annotations

import sys

# Starts the command of this installation, not a module of the same name in the current directory: `-P` leaves the
# directory out, and `__main__` sorts PYTHONPATH behind the installed packages.
COMMAND = (sys.executable, "-P", "-m", "neuronserve")
