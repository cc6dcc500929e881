"""Imports of the fork server (server/host/fork_server.py): everything that an engine runs."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from pathlib import Path

from ..host.import_order import put_own_packages_first
from ..host.late_methods import make_methods_late

# Only the server handles a signal to all processes of a terminal or unit; it ends its engines when they have drained.
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
put_own_packages_first()
make_methods_late()
gc.disable()  # saves a tenth of the import time; a loaded engine turns it on again

# Numba imports these if they are installed: one for its version, one for a file that does not exist here.
UNUSED = ("scipy",) if Path(".numba_config.yaml").exists() else ("scipy", "yaml")
sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: the import fails
importlib.import_module("numba")
for module in UNUSED:
    del sys.modules[module]

for module in ("neuronserve.server.engine.process", "neuronserve.server.engine.serving"):
    importlib.import_module(module)
gc.freeze()  # a collection in a forked process walks, and so copies, only its own objects
