"""What is known of a model on the real part, as lines of a server's log."""

from __future__ import annotations

import logging

from neuronserve.server.device.catalog import instances
from neuronserve.server.device.support import part_status, verdict

log = logging.getLogger("neuronserve.support")


def log_support(model: str, part: str, tp: int, max_model_len: int | None, features: tuple[str, ...]) -> None:
    """A known failure as a warning, the outcome as information, what else is known for --log-level debug."""
    for device in (each for each in instances() if each.name == part):
        release, status = part_status(device.chip.name)
        found = verdict(model, device, tp, features=features, length=max_model_len or 0)
        level = logging.WARNING if found.outcome == "known not to run" else logging.INFO
        log.log(level, "a real %s with TP %d: %s", device.name, tp, found)
        for fact in found.limits:
            log.debug("a real %s: %s", device.name, fact.statement)
        for fact in status:
            log.debug("%s under SDK %s: %s", device.chip.name, release, fact.statement)
