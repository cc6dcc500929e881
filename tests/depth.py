"""Marks for cases of a parametrized test that only `make test-all` runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def thorough(*values: Any) -> Any:
    """One case, with a value for each name, that is left to `make test-all`."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def representative(cases: Sequence[Any], *always: Any) -> list[Any]:
    """All of `cases` (tuples where there are several names); those not among `always` are left to `make test-all`."""
    assert all(case in cases for case in always), f"{always} are to be among {cases}"
    return [case if case in always else thorough(*(case if isinstance(case, tuple) else (case,))) for case in cases]
