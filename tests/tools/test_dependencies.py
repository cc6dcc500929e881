"""The audit of dependencies: every one that is installed has a known licence, and reports are read right."""

from __future__ import annotations

import pytest

from tools.audit import LOCK, Advisories, advisories_of, is_known, licence_of, locked


def test_every_package_of_the_image_has_a_licence_that_is_known() -> None:
    names = locked(LOCK.read_text())
    assert {"numpy", "fastapi", "msgspec"} <= set(names)
    licences = {name: licence for name in names if (licence := licence_of(name)) is not None}
    assert len(licences) > len(names) // 2
    assert [name for name, licence in licences.items() if not is_known(licence)] == []


@pytest.mark.parametrize(
    ("licence", "known"),
    [
        ("MIT", True),
        ("Apache-2.0 AND BSD-2-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("GNU General Public License v3 (GPLv3)", False),
        ("none", False),
    ],
)
def test_all_parts_of_a_licence_must_be_known_or_one_to_choose(licence: str, known: bool) -> None:
    assert is_known(licence) == known


def test_a_lock_has_names_once_whatever_follows_them() -> None:
    lock = "# head\nnumpy==1.0 ; python_version < '3.12' \\\n    --hash=sha256:00\nnumpy==2.0 \\\nanyio==4\n"
    assert locked(lock) == ["anyio", "numpy"]


def test_advisories_and_packages_that_the_registry_does_not_know_are_told_apart() -> None:
    bad = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
    old = {"name": "b", "version": "1", "vulns": [{"id": "PYSEC-2", "fix_versions": []}]}
    report = {"dependencies": [bad, old, {"name": "c", "skip_reason": "not found"}, {"name": "d", "vulns": []}]}
    found = ("a 1: PYSEC-1, fixed in 2", "b 1: PYSEC-2, fixed in no version")
    assert advisories_of(report) == Advisories(found, 4, 1)
