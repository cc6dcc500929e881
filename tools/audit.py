"""Licences of the image's packages, and advisories about them: `python -m tools.audit` (`make audit`).

Licences are read from the packages installed here; a licence that is not on the list `KNOWN` is an error. pip-audit,
which `make audit` installs, asks for advisories; a registry without any is reported and is no error.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
# Permissive licences, and copyleft of single files (MPL), which are used unchanged.
KNOWN = re.compile(r"0?BSD|MIT|Apache|ISC|MPL|Mozilla|PSF|Python Software Foundation|Zlib|CC0|CNRI|Unlicense")


@dataclass(frozen=True, slots=True)
class Advisories:
    """Result of pip-audit."""

    found: tuple[str, ...]  # a line for each advisory
    num_asked: int
    num_unanswered: int  # packages that the registry has no data for


def locked(lock: str) -> list[str]:
    """Return the names of the packages in the text of a lock file."""
    return sorted(set(re.findall(r"^([a-z0-9][a-z0-9._-]*)==", lock, re.MULTILINE)))


def licence_of(name: str) -> str | None:
    """Return the licence in a package's metadata, in any of its three forms; None if it is not installed."""
    try:
        found = metadata(name).json
    except PackageNotFoundError:
        return None
    classifiers = [line.rpartition(" :: ")[2] for line in found.get("classifier", ()) if "License ::" in line]
    return str(found.get("license_expression") or " AND ".join(classifiers) or found.get("license") or "none")


def is_known(licence: str) -> bool:
    """Return whether the list has each part of an expression, or one of its alternatives."""
    choices = re.split(r"\bOR\b", licence)
    return any(all(KNOWN.search(part) for part in re.split(r"\bAND\b", choice)) for choice in choices)


def advisories_of(report: Mapping[str, Any]) -> Advisories:
    """Parse pip-audit's JSON report."""
    packages = report["dependencies"]
    found = tuple(
        f"{each['name']} {each['version']}: {vuln['id']}, fixed in {', '.join(vuln['fix_versions']) or 'no version'}"
        for each in packages
        for vuln in each.get("vulns", ())
    )
    return Advisories(found, len(packages), sum("skip_reason" in each for each in packages))


def check_licences(names: Iterable[str]) -> bool:
    """Print a line for each package; returns whether all licences are known."""
    licences = {name: licence_of(name) for name in names}
    unknown = [name for name, licence in licences.items() if licence is not None and not is_known(licence)]
    for name, licence in licences.items():
        print(f"{name:40} {licence or 'not installed on this platform'}")
    print(f"licences: {len(licences)} packages, not on the list: {', '.join(unknown) or 'none'}")
    return not unknown


def check_advisories() -> bool:
    """Print a line for each advisory about the locked packages; returns whether there is none."""
    options = ("--disable-pip", "--require-hashes", "--format", "json", "--progress-spinner", "off")
    ended = subprocess.run(["pip-audit", *options, "-r", str(LOCK)], capture_output=True, text=True, check=False)
    try:
        advisories = advisories_of(json.loads(ended.stdout))
    except ValueError:
        reason = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        print(f"advisories: none requested, pip-audit could not reach the registry: {reason}")
        return True
    for line in advisories.found:
        print(line)
    print(f"advisories: {len(advisories.found)} about {advisories.num_asked} packages")
    if advisories.num_unanswered:
        print(f"advisories: the registry here does not answer for {advisories.num_unanswered} of them: not audited")
    return not advisories.found


def main() -> int:
    are_fine = [check_licences(locked(LOCK.read_text())), check_advisories()]
    return 0 if all(are_fine) else 1


if __name__ == "__main__":
    sys.exit(main())
