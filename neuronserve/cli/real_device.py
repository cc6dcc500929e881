"""Check of a start against what is known of the model on the real accelerator: log lines, or a refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from neuronserve.server.checkpoint.model_config import read_model_config
from neuronserve.server.device.catalog import instances
from neuronserve.server.device.support import Question, Verdict, answer, chip_status, last_release
from neuronserve.server.errors import CheckpointError, KnownFailure

if TYPE_CHECKING:
    from neuronserve.server.device.instances import Instance
    from neuronserve.server.settings.compile import CompileSettings
    from neuronserve.server.settings.serve import ServeSettings

log = logging.getLogger("neuronserve.support")


def check_serve(settings: ServeSettings, resolve: Callable[[], Path]) -> Path:
    """Return the model's directory from `resolve`, and log what is known of the model on the real accelerator.

    Raises KnownFailure for a reported failure if the settings ask for it.
    """
    model_path, length = _length(settings, resolve)
    part = _part(settings.device)
    if part is not None:
        asked = _question(settings, part, length, (*settings.features,), settings.serving_stack.name)
        _log(asked, _found(asked, is_strict=settings.strict_device))
    return model_path or resolve()


def check_compile(settings: CompileSettings, resolve: Callable[[], Path], warn: Callable[[str], None]) -> Path:
    """Return the model's directory from `resolve`; `warn` of each failure reported of the real accelerator.

    Raises KnownFailure for a reported failure if the settings ask for it.
    """
    model_path, length = _length(settings, resolve)
    part = _part(settings.device)
    if part is not None:
        asked = _question(settings, part, length)
        found = _found(asked, is_strict=settings.strict_device)
        for line in _failures(asked, found):
            warn(f"warning: {line}")
    return model_path or resolve()


def _length(settings: ServeSettings | CompileSettings, resolve: Callable[[], Path]) -> tuple[Path | None, int]:
    """Return the longest context, and the model's directory if its config.json had to be asked."""
    if settings.max_model_len is not None:
        return None, settings.max_model_len
    directory = resolve()
    return directory, _trained_length(directory)


def _trained_length(directory: Path) -> int:
    """Return the positions that config.json states; 0 if it states none, which loading the model will report."""
    try:
        config = read_model_config(directory / "config.json")
    except CheckpointError:
        return 0
    text = config.get("text_config")
    found = config.get("max_position_embeddings") or (isinstance(text, dict) and text.get("max_position_embeddings"))
    return found if isinstance(found, int) else 0


def _part(device: str) -> Instance | None:
    return next((each for each in instances() if each.name == device), None)


def _question(
    settings: ServeSettings | CompileSettings,
    part: Instance,
    length: int,
    features: tuple[str, ...] = (),
    stack: str = "",
) -> Question:
    tp, release = settings.tensor_parallel_size, last_release(part.chip.name)
    return Question(settings.model, part, tp, release, features, length, stack)


def _found(asked: Question, *, is_strict: bool) -> Verdict:
    """Return the verdict. Raises KnownFailure for a failure if `is_strict`."""
    found = answer(asked)
    if is_strict and found.failures:
        fact = found.failures[0]
        raise KnownFailure(
            f"{fact.error or fact.what}: {_failures(asked, found)[0]}; without --strict-device this is a warning"
        )
    return found


def _failures(asked: Question, found: Verdict) -> list[str]:
    return [f"{_place(asked)}: {found.heading}: {fact}" for fact in found.failures]


def _place(asked: Question) -> str:
    return f"a real {asked.instance.name} with TP {asked.tp}"


def _log(asked: Question, found: Verdict) -> None:
    """Log each failure as a warning, any other outcome as information, and further facts for --log-level debug."""
    failures = _failures(asked, found)
    for line in failures:
        log.warning("%s", line)
    if not failures:
        log.info("%s: %s", _place(asked), found)
    for fact in found.limits:
        log.debug("a real %s: %s", asked.instance.name, fact.statement)
    chip = asked.instance.chip.name
    release, status = chip_status(chip)
    for fact in status:
        log.debug("%s under SDK %s: %s", chip, release, fact.statement)
