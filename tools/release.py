"""Everything of a release, from the last commit, into dist/: `make release`.

The wheel, the source archive, the image's recipe, the bill of materials, the site, the notes and SHA256SUMS. Times are
those of the commit, so that the same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ("Dockerfile", "requirements.lock", "requirements-build.lock")


class ReleaseError(Exception):
    """The tree cannot be released."""


def run(*command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> bytes:
    """Return what a command prints. Raises CalledProcessError."""
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.PIPE).stdout


def notes(changelog: str, version: str) -> str:
    """Return the section of a version; that of unreleased changes if it has none. Raises ReleaseError."""
    for title in (re.escape(version), "Unreleased"):
        found = re.search(rf"^## {title}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
        if found is not None:
            return f"# neuronserve {version}\n\n{found[1].strip()}\n"
    raise ReleaseError(f"CHANGELOG.md has no section of {version}")


def packed(files: Sequence[tuple[str, Path]], epoch: int) -> bytes:
    """Return a tar.gz of files by their names, the same for the same contents."""
    data = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=data, mode="wb", mtime=epoch, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(files):
            info = archive.gettarinfo(str(path), name)
            info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "", ""
            info.mode = 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as content:
                    archive.addfile(info, content)
            else:
                archive.addfile(info)
    return data.getvalue()


def below(folder: Path, prefix: str) -> list[tuple[str, Path]]:
    """Return all files below a folder with their names in an archive."""
    return [
        (f"{prefix}/{path.relative_to(folder)}", path)
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    ]


def release(target: Path, python: Path) -> list[Path]:
    """Write a release into an empty folder; `python` is of an environment with what builds it. Raises ReleaseError."""
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    epoch = int(run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    name = f"neuronserve-{version}"
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ReleaseError(f"{target} is not empty")
    with tempfile.TemporaryDirectory(prefix="neuronserve-release-") as scratch:
        tree, made = Path(scratch, name), Path(scratch, "made")
        tree.mkdir()
        with tarfile.open(fileobj=io.BytesIO(run("git", "archive", "HEAD", cwd=ROOT))) as archive:
            archive.extractall(tree, filter="tar")
        (target / f"{name}.tar.gz").write_bytes(packed(below(tree, name), epoch))
        clock = {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
        wheel = ("-m", "build", "--wheel", "--no-isolation", "--outdir", made, tree)
        run(python, *map(str, wheel), cwd=tree, environment=clock)
        shutil.copy(next(made.glob("*.whl")), target)
        site = Path(scratch, "site")
        build_site = ("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site))
        run(python, *build_site, cwd=tree, environment={**clock, "NO_MKDOCS_2_WARNING": "1"})
        for each in site.glob("sitemap.xml*"):  # has the date of the build
            each.unlink()
        (target / f"{name}-docs.tar.gz").write_bytes(packed(below(site, f"{name}-docs"), epoch))
        recipe = [(f"{name}-image/{file}", tree / file) for file in RECIPE]
        (target / f"{name}-image.tar.gz").write_bytes(packed(recipe, epoch))
        materials = target / f"{name}.cdx.json"
        parts = ("cyclonedx_py", "requirements", "--output-reproducible", "--pyproject", "pyproject.toml")
        run(python, "-m", *parts, "--output-file", materials, "requirements.lock", cwd=tree)
        (target / f"{name}-notes.md").write_text(notes((tree / "CHANGELOG.md").read_text(), version))
    files = sorted(target.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (target / "SHA256SUMS").write_text(sums)
    return files


def main() -> int:
    """Write dist/, or another folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", type=Path, required=True, help="of an environment with tools/release.txt")
    args = parser.parse_args()
    try:
        for file in release(args.target, args.python.absolute()):
            print(f"{file.stat().st_size:12,}  {file.name}")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
