"""Files of a load test. A result that must not be published never gets the requested name."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SpecError


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Paths of the files of one load test."""

    result: Path
    records: Path
    page: Path

    @classmethod
    def named(cls, directory: str, stem: str, result: str | None = None, page: str | None = None) -> Artifacts:
        """Return `<directory>/<stem>-<time>.*`, except for given paths."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-") or "run"
        base = Path(directory) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        json_path = Path(result) if result else base.with_name(f"{base.name}.json")
        html_path = Path(page) if page else json_path.with_suffix(".html")
        return cls(json_path, json_path.with_name(f"{json_path.stem}.requests.jsonl"), html_path)

    def part(self, name: str) -> Path:
        """Return the record file of one of several runs."""
        return self.records.with_name(f"{self.result.stem}.{name}.requests.jsonl")

    @property
    def _partial(self) -> Path:
        return self.result.with_name(f"{self.result.stem}.partial.json")

    def save_partial(self, content: dict[str, Any]) -> None:
        """Save the results so far, in case the load test does not finish."""
        write_text(self._partial, json.dumps(content) + "\n")

    def save_result(self, result: dict[str, Any], is_publishable: bool = True) -> Path:
        """Write the JSON and return its path; `<name>.rejected.json` if it must not be published."""
        path = self.result if is_publishable else self.result.with_name(f"{self.result.stem}.rejected.json")
        write_text(path, json.dumps(result, indent=1) + "\n")
        self._partial.unlink(missing_ok=True)
        return path


def write_text(path: Path, text: str) -> Path:
    """Write a file through a temporary one, so that readers never see half of it. Raises SpecError."""
    half = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except OSError as error:
        raise SpecError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return path
