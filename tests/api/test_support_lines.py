"""Lines of `serve` and `compile` about the real accelerator: a warning when the model is known not to run there."""

from __future__ import annotations

import json
import re
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


TOO_LONG = ("--tensor-parallel-size", "2", "--max-model-len")


def _configured(folder: Path, name: str, positions: int = 131_072) -> str:
    """Return a directory with a config.json alone, which is enough for a refusal before loading."""
    (folder / name).mkdir()
    config = json.loads((DEFAULT_MODEL / "config.json").read_text()) | {"max_position_embeddings": positions}
    (folder / name / "config.json").write_text(json.dumps(config))
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "args", "error"),
    [
        ("Llama-3.1-8B-Instruct", (*TOO_LONG, "4096"), "NCC_INLA001"),
        ("Llama-3.1-8B-Instruct", TOO_LONG[:2], "NCC_INLA001"),  # the model's own length
        ("Qwen3-8B", ("--tensor-parallel-size", "2", "--device", "inf2.48xlarge"), "NCC_IXCG856"),
        ("some-model", ("--stack", "vllm-neuron"), "ValueError: Unsupported instance family: inf2."),
        ("some-model", ("--device", "trn1.32xlarge"), "NCC_ITEN404"),
    ],
)
def test_serve_refuses_what_fails_if_it_is_strict(tmp_path: Path, name: str, args: tuple[str, ...], error: str) -> None:
    ended = run_command("serve", _configured(tmp_path, name), *args, "--strict-device", *STOP)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("neuronserve: error: ")
    assert error in line.split(": a real ")[0]
    assert re.search(r"\(.*https://\S+, 20\d\d-\d\d-\d\d\)", line)
    assert "without --strict-device" in line


def test_compile_warns_of_the_part_and_refuses_if_it_is_strict(tmp_path: Path) -> None:
    model = _configured(tmp_path, "Llama-3.1-8B-Instruct")
    command = ("compile", model, "--report-only", *TOO_LONG)
    ended = run_command(*command, "4096")
    (warning,) = [line for line in ended.stderr.splitlines() if line.startswith("warning:")]
    assert (ended.returncode, "NCC_INLA001" in warning, "torchneuronx" in warning) == (0, True, True)
    assert "warning:" not in run_command(*command, "3072").stderr
    refused = run_command(*command, "4096", "--strict-device")
    assert refused.returncode == 2
    assert "NCC_INLA001" in refused.stderr.splitlines()[-1]
    assert run_command(*command, "3072", "--strict-device").returncode == 0
