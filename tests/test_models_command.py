"""`neuronserve models`: verdicts on checkpoints, and the lists."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neuronserve.cli import main
from neuronserve.server.models.families import ENCODERS, GENERATORS
from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import ROOT, environment
from tools.random_checkpoint.writer import write_checkpoint


def verdict(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["models", *argv])
    return code, " ".join(capsys.readouterr().out.split())


def test_a_checkpoint_that_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = verdict(capsys, str(DEFAULT_MODEL))
    assert code == 0
    assert words.startswith("yes; 1.1 GiB on inf2.xlarge TP1; tools: hermes; reasoning: none; LlamaForCausalLM, 5.2M")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["NewForCausalLM"]}, "architecture 'NewForCausalLM' is not supported; nearest is "),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"auto_map": {"AutoModel": "m.M"}}, "code that comes with a checkpoint is never run"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantization_config.quant_method is 'hqq'"),
        ({"hidden_size": 250}, "config.json makes it [2048, 250]"),
    ],
)
def test_what_is_missing_is_named(
    changes: dict[str, object], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in DEFAULT_MODEL.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((DEFAULT_MODEL / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    code, words = verdict(capsys, str(tmp_path))
    assert (code, words[:4]) == (1, "no; ")
    assert reason in words


def test_a_model_that_is_too_large_for_the_part_gets_the_smallest_that_holds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint("tiny-llama", tmp_path)
    code, words = verdict(capsys, str(tmp_path), "--device", "inf2.24xlarge")
    assert code == 0
    assert " on inf2.24xlarge TP1; " in words


def test_lists_have_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    code, words = verdict(capsys)
    assert code == 0
    for name in (*GENERATORS, *ENCODERS, "int4", "hermes", "deepseek_r1"):
        assert f" {name}" in words


def test_no_compiler_is_loaded_for_it() -> None:
    script = (
        f"import sys; from neuronserve.cli import main; main(['models', {str(DEFAULT_MODEL)!r}]);"
        "sys.exit('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
