"""`neuronserve completion SHELL` in the shells themselves; those that are not installed are skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from neuronserve.cli import COMMANDS, main
from neuronserve.cli.every import BY_COMMAND
from tests.terminal import terminal

Script = Callable[[str], Path]


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Script:
    """(shell) -> a file with what the command prints for it."""

    def written(shell: str) -> Path:
        assert main(["completion", shell]) == 0
        file = tmp_path / "_neuronserve"
        file.write_text(capsys.readouterr().out)
        return file

    return written


def bash(script: Path, *words: str) -> set[str]:
    """Return bash's completions of the last word."""
    setup = f"source {script}; COMP_WORDS=({' '.join(words)}); "
    ask = f'COMP_CWORD={len(words) - 1}; _neuronserve; printf "%s\\n" "${{COMPREPLY[@]}}"'
    ended = subprocess.run(["bash", "-c", setup + ask], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return set(ended.stdout.split())


def fish(script: Path, line: str) -> set[str]:
    command = f"source {script}; complete -C '{line}'"
    ended = subprocess.run(["fish", "--no-config", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return {found.partition("\t")[0] for found in ended.stdout.splitlines()}


def test_every_command_with_settings_is_in_the_table() -> None:
    without = {"bench serve", "completion", "version"}  # which have flags of their own, or none
    assert set(COMMANDS) - without == set(BY_COMMAND)


def test_bash_completes_commands_flags_and_values(script: Script) -> None:
    file = script("bash")
    assert bash(file, "neuronserve", "''") == {name.split()[0] for name in COMMANDS}
    assert bash(file, "neuronserve", "si") == {"simulate"}
    assert bash(file, "neuronserve", "bench", "''") == {"latency", "throughput", "accuracy", "serve"}
    assert bash(file, "neuronserve", "serve", "--tensor") == {"--tensor-parallel-size"}
    assert {"--no-enable-prefix-caching", "--enable-prefix-caching"} <= bash(file, "neuronserve", "serve", "--")
    assert bash(file, "neuronserve", "serve", "--dtype", "''") == {"auto", "bfloat16", "float32"}
    assert {"inf2.xlarge", "inf2.48xlarge"} <= bash(file, "neuronserve", "ls", "--device", "inf2")
    assert bash(file, "neuronserve", "serve", "--port", "''") == set()
    assert "--batch-size" in bash(file, "neuronserve", "bench", "latency", "--batch")
    assert {"--request-rate"} == bash(file, "neuronserve", "bench", "serve", "--request-r")
    assert bash(file, "neuronserve", "bench", "serve", "--num-prompts", "''") == set()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_flags_and_values(script: Script) -> None:
    file = script("fish")
    assert fish(file, "neuronserve ") >= {name.split()[0] for name in COMMANDS}
    assert fish(file, "neuronserve bench ") >= {"latency", "throughput", "accuracy", "serve"}
    assert fish(file, "neuronserve serve --dtyp") == {"--dtype"}
    assert fish(file, "neuronserve serve --dtype ") == {"auto", "bfloat16", "float32"}
    assert "--batch-size" in fish(file, "neuronserve bench latency --batch")
    assert fish(file, "neuronserve bench serve --dtyp") == set()
    assert fish(file, "neuronserve bench serve --request-r") == {"--request-rate"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_commands_flags_and_values(script: Script) -> None:
    file = script("zsh")
    with terminal(["zsh", "-f", "-i"], PS1="$ ", HISTFILE="") as shell:
        shell.expect("$ ")
        shell.type(f"autoload -Uz compinit && compinit -u -d {file}.dump && source {file} && echo do''ne\n")
        shell.expect("done\n")
        for typed, completed in {
            "neuronserve sim": "ulate ",
            "neuronserve serve --tensor-p": "arallel-size ",
            "neuronserve serve --dtype fl": "oat32 ",
            "neuronserve bench thr": "oughput ",
            "neuronserve bench latency --input": "-len ",
            "neuronserve bench serve --request-r": "ate ",
        }.items():
            shell.expect("$ ")
            shell.type(f"{typed}\t")
            shell.expect(completed)
            shell.type("\x15\n")


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err
