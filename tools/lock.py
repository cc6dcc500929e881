"""Write requirements.lock and requirements-build.lock from pyproject.toml: `python -m tools.lock` (`make lock`).

They cover every platform and Python from 3.11 on, with the hash of every file. Uses uv, which `make lock` installs.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "requirements.lock": "What the image runs with, tracing and KV events included",
    "requirements-build.lock": "What builds the wheel in the image, and the list of what is inside",
}


def requirements(lock: str) -> list[str]:
    """Return the requirements of pyproject.toml that `lock` pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if "build" in lock:
        return [*project["build-system"]["requires"], *project["dependency-groups"]["image-build"]]
    extras = project["project"]["optional-dependencies"]
    return [*project["project"]["dependencies"], *extras["otel"], *extras["events"]]


def compiled(requirements: list[str]) -> str:
    """Return requirements pinned, with hashes."""
    options = (
        "--generate-hashes",
        "--universal",
        "--python-version",
        "3.11",
        "--no-header",
        "--no-annotate",
        "--quiet",
    )
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", *options, "-"]
    return subprocess.run(command, input="\n".join(requirements), capture_output=True, text=True, check=True).stdout


def main() -> int:
    for lock, what in LOCKS.items():
        (ROOT / lock).write_text(f"# {what}, with hashes. Written by `make lock`.\n{compiled(requirements(lock))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
