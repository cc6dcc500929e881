"""A wheel of compiled kernels for a first start with a model in bfloat16: `make kernels`, for the Python that runs it.

It puts kernels of every x86-64 level where the server looks for them (server/kernels/isa/cache.py), and requires the
releases of neuronserve and Numba that they were compiled with. Numba puts addresses into symbols, so two builds differ.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import numba

from tools.precompile import compile_levels
from tools.release import ROOT, run

PACKAGE = "neuronserve.server.kernels.prebuilt"
PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "neuronserve-kernels"
version = "{version}"
description = "Compiled kernels of neuronserve {version} for x86-64 and Python {python}"
license = "Apache-2.0"
requires-python = "=={python}.*"
dependencies = ["neuronserve=={version}", "numba=={numba}"]

[tool.setuptools]
packages = ["{package}"]
include-package-data = false

[tool.setuptools.package-data]
"{package}" = ["**/*"]

[tool.distutils.bdist_wheel]
python-tag = "{tag}"
plat-name = "manylinux_2_17_x86_64"
"""


def pack(kernels: Path, target: Path, python: Path) -> Path:
    """Write the wheel of a folder of compiled kernels into `target`. The kernels are those of the running Python.

    `python` is of an environment with tools/release.txt.
    """
    major, minor = sys.version_info[:2]
    facts = {
        "version": str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]),
        "python": f"{major}.{minor}",
        "tag": f"cp{major}{minor}",
        "numba": numba.__version__,
        "package": PACKAGE,
    }
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="neuronserve-kernels-") as scratch:
        tree = Path(scratch, "tree")
        shutil.copytree(kernels, tree.joinpath(*PACKAGE.split(".")))
        (tree / "pyproject.toml").write_text(PROJECT.format(**facts))
        run(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", Path(scratch, "made"), tree, cwd=tree)
        return Path(shutil.copy(next(Path(scratch, "made").glob("*.whl")), target))


def main() -> int:
    """Compile, and write the wheel into dist/, or another folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", type=Path, required=True, help="of an environment with tools/release.txt")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neuronserve-kernels-") as folder:
        compile_levels(Path(folder), "--small")
        made = pack(Path(folder), args.target, args.python.absolute())
    print(f"{made.stat().st_size:12,}  {made.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
