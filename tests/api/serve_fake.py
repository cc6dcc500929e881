"""`neuronserve` with the fake model: the entry point of the servers that tests start."""

from __future__ import annotations

import sys

from neuronserve.cli import run_process
from tests.api.serving import fake_account, run_fake

if __name__ == "__main__":
    sys.exit(run_process(run_fake, fake_account))
