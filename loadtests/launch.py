"""`neuronserve` as a module that can be run, for servers that a load test starts itself."""

from __future__ import annotations

import sys

from server.cli import main

if __name__ == "__main__":  # the engine's process imports this module again
    sys.exit(main())
