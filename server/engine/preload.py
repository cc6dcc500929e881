"""What the process that engines are forked from (server/host/fork_server.py) imports at its start: all they run."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from pathlib import Path

from neuronserve.server.host.import_order import put_own_packages_first
from neuronserve.server.host.late_methods import make_methods_late

# A signal to all processes of a terminal or a unit is for the server, which ends engines when they have drained.
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
put_own_packages_first()
make_methods_late()
gc.disable()  # a tenth of the time of imports; an engine that has loaded turns it on again

# Numba imports these where they are installed: one to see its version, one for a file that is not there.
UNUSED = ("scipy",) if Path(".numba_config.yaml").exists() else ("scipy", "yaml")
sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: there is no such module
importlib.import_module("numba")
for module in UNUSED:
    del sys.modules[module]

for module in ("neuronserve.server.engine.process", "neuronserve.server.engine.serving"):
    importlib.import_module(module)
gc.freeze()  # a collection in a process that is forked walks, and so copies, what that has made itself
