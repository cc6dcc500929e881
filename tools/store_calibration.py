"""Makes a fit the shipped one: `python -m tools.store_calibration REPORT`.

REPORT is what `neuronserve calibrate --json` wrote. Then run tools.record_release and tools.doc_tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

from neuronserve.server.cost.calibration import read_calibration
from tools.compact_json import compact

FILE = Path(__file__).resolve().parent.parent / "server" / "cost" / "calibration.json"


def main() -> int:
    """Write the file; returns the exit code."""
    FILE.write_text(compact(read_calibration(Path(sys.argv[1])).as_dict(), 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
