"""What an application that uses neuronserve may import in its own process.

Nothing here imports `server`, except `__main__` in a process of its own: an application may have such a package itself.
"""

from __future__ import annotations

import sys

# Starts the command of this installation. What is in the current directory or under PYTHONPATH does not take its place:
# `-P` leaves the directory out, and `__main__` puts the rest behind its own packages.
COMMAND = (sys.executable, "-P", "-m", "neuronserve")
