"""Choice of written answers for requests: by the rules of a file, of tests that run now, or by a function."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ...server.api.http.scripted import Scripted
from ...server.errors import InvalidRequest
from ...server.typed_json import JsonError
from .rule_file import script_rules, scripted, with_answers
from .rules import Answer, Body, FaultConfig, Injection, Injections

log = logging.getLogger("neuronserve.faults")


class Scripts:
    """Answers and faults in force. Those that a test has added come before those of the file, the newest first."""

    def __init__(self, config: FaultConfig) -> None:
        self._function = config.script
        self._file = _Rules(config)
        self._added: dict[int, _Rules] = {}
        self._num_added = 0

    def add(self, content: Any) -> int:
        """Add the rules of a test; return their number. Raises InvalidRequest."""
        try:
            rules = script_rules(content)
        except JsonError as error:
            raise InvalidRequest(f"script: {error}", "rules") from error
        self._num_added += 1
        self._added[self._num_added] = _Rules(with_answers(rules))
        return self._num_added

    def remove(self, number: int) -> bool:
        """Remove the rules of a test; return whether they were there."""
        return self._added.pop(number, None) is not None

    def answer(self, path: str, headers: Mapping[str, str], body: Body) -> Scripted | None:
        """Return the answer of a request. Raises InvalidRequest for one that the function cannot give."""
        for rules in self._in_force():
            found = rules.answers.drawn(path, headers, body)
            if found is not None and isinstance(found.rule, Answer):
                log.info("answer written by rule %s", found.label)
                return found.rule.output
        if self._function is None or not body:
            return None
        try:
            given = self._function(dict(body))
            return None if given is None else scripted(given)
        except Exception as error:
            why = f"script: answer(request) failed: {type(error).__name__}: {error}"
            raise InvalidRequest(why, code="script_failed") from error

    def fault(self, path: str, headers: Mapping[str, str], body: Body) -> Injection | None:
        """Return the fault of a request, if any."""
        found = (rules.faults.drawn(path, headers, body) for rules in self._in_force())
        return next((each for each in found if each is not None), None)

    def _in_force(self) -> list[_Rules]:
        return [*reversed(self._added.values()), self._file]


class _Rules:
    def __init__(self, config: FaultConfig) -> None:
        self.faults = Injections(config.rules, config.seed)
        self.answers = Injections(config.answers, config.seed)
