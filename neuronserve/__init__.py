"""neuronserve: an OpenAI-compatible LLM server. Applications import this package and `neuronserve.testing`.

Neither imports the server, which runs in its own process.
"""

from __future__ import annotations

import sys

# Starts the command of this installation. Packages in the current directory or PYTHONPATH do not replace it: `-P`
# leaves out the directory, and `__main__` sorts the rest behind its own packages.
COMMAND = (sys.executable, "-P", "-m", "neuronserve")
