"""Lines of `serve` and `compile` about the real accelerator: a warning when the model is known not to run there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import run_command, write_checkpoint

CRASH = "the compiler crashes inlining the attention kernel (https://github.com/helixml/helix/pull/2724, 2026-06-25)"
STOP = ("--port", "0", "--host", "203.0.113.1")  # an address that is nobody's: the start ends before requests


def _said(*args: str) -> tuple[list[str], list[str]]:
    """Lines of warning, and of information, of a server that cannot listen."""
    ended = run_command("serve", *args, *STOP)
    assert "cannot listen there" in ended.stderr
    lines = ended.stderr.splitlines()
    return [line for line in lines if " WARNING " in line], [
        line for line in lines if re.search(" (INFO|DEBUG) ", line)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "args", "warning"),
    [
        ("Llama-3.2-1B", (), f"a real inf2.xlarge with TP 1: known not to run (SDK 2.28.1 with prefix_caching, chunked_"
         f"prefill): Inferentia2: does not compile on any SDK for the part: {CRASH}"),
        ("Llama-3.2-1B", ("--device", "trn2.48xlarge"), ""),
        ("some-model", ("--device", "trn1.32xlarge"), "NCC_ITEN404"),
        ("some-model", ("--device", "trn1.32xlarge", "--no-enable-prefix-caching"), ""),
    ],
)  # fmt: skip
def test_serve_warns_of_what_is_known_not_to_run(
    tmp_path: Path, name: str, args: tuple[str, ...], warning: str
) -> None:
    warnings, _ = _said(str(write_checkpoint(tmp_path / name)), *args)
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)


def test_serve_tells_the_outcome_the_limits_and_the_status_of_the_part(tmp_path: Path) -> None:
    model = str(write_checkpoint(tmp_path / "some-model"))
    warnings, brief = _said(model)
    assert sum("Inferentia2" in line or "a real" in line for line in brief) == 1
    _, lines = _said(model, "--log-level", "debug")
    told = "\n".join(lines)
    assert not warnings
    assert "a real inf2.xlarge with TP 1: not known" in told
    assert "no chunked prefill" in told
    assert "Inferentia2 under SDK 2.33.0: since SDK 2.31:" in told


@pytest.mark.slow
def test_compile_warns_whatever_the_part(tmp_path: Path) -> None:
    for name, count in (("Qwen2.5-1.5B", 1), ("some-model", 0)):
        model = shutil.copytree(DEFAULT_MODEL, tmp_path / name)
        ended = run_command("compile", str(model), "-o", str(tmp_path / f"{name}-compiled"))
        assert ended.returncode == 0, ended.stderr
        warnings = [line for line in ended.stderr.splitlines() if line.startswith("warning:")]
        assert len(warnings) == count
        assert all("known not to run on Inferentia2" in line and CRASH in line for line in warnings)
