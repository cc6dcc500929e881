"""The command as a user meets it: exit codes, one-line complaints, and no traceback."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from neuronserve.server import __version__
from tests.api.serving import (
    PATIENCE_S,
    ROOT,
    VOCAB_SIZE,
    command,
    environment,
    read_until,
    run_command,
    running_server,
    until,
    write_checkpoint,
)


@pytest.mark.slow
def test_a_tokenizer_that_knows_more_than_the_embedding_is_refused_at_start(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": VOCAB_SIZE, "content": "<|one more|>"})
    other = tmp_path / "other"
    shutil.copytree(model, other)
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    for arguments in ([str(other)], [str(model), "--tokenizer", str(other)]):
        ended = run_command("serve", *arguments, "--port", "0")
        assert ended.returncode == 2
        assert (
            f"tokenizer.json: its largest token id is {VOCAB_SIZE}, but the model has embeddings for ids below "
            f"{VOCAB_SIZE} (vocab_size of config.json)"
        ) in ended.stderr


def test_a_file_that_git_lfs_has_not_fetched_is_refused_at_start(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path / "model") / "tokenizer.json"
    file.write_text("version https://git-lfs.example/spec/v1\n")
    ended = run_command("serve", str(file.parent), "--port", "0")
    assert ended.returncode == 2
    assert f"{file}: is a pointer of Git LFS" in ended.stderr


def test_ctrl_c_is_one_line_and_no_traceback() -> None:
    argv = command("simulate", "--num-prompts", "10000000", program="neuronserve")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, env=environment(), cwd=ROOT) as process:
        until(lambda: "_umath_linalg" in Path(f"/proc/{process.pid}/maps").read_text())  # it is at work
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        words = process.stderr.read().decode()
        assert words.splitlines()[-1:] == ["neuronserve: interrupted"]
        assert "Traceback" not in words
        # Where it meets the text of a class that is made, as it does in imports, Python ends itself by the signal.
        assert process.wait(PATIENCE_S) in {130, -signal.SIGINT}


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "weights"), [((), "bfloat16"), (("--quantization", "int8"), "int8")])
def test_the_log_says_what_the_weights_are(checkpoint: Path, flags: tuple[str, ...], weights: str) -> None:
    with running_server(checkpoint, *flags) as server:
        assert f"serving fake on inf2.xlarge (TP=1, weights {weights})" in server.log


def test_version_and_help() -> None:
    assert run_command("--version").stdout.strip() == __version__
    page = run_command("serve", "--help-all").stdout
    for flag in (
        "--tensor-parallel-size N",
        "--no-enable-prefix-caching",
        "--dtype {auto,bfloat16,float32}",
        "--config",
    ):
        assert flag in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--port", "70000"], "--port: must be less than or equal to 65535, not '70000'"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--port"], "argument --port: expected one argument"),
        (["--device", "fail"], "the model does not fit: it needs 99 GiB, the core has 16 GiB"),
        (["--device", "fail", "--engine-mode", "thread"], "the model does not fit"),
        (["--chat-template", "/no/such/file"], "--chat-template: cannot read '/no/such/file'"),
        (["--chat-template", "{% for %}"], "cannot be compiled"),
        (["--tokenizer", "/nowhere"], "tokenizer.json: is missing"),
        (["--host", "203.0.113.1"], "cannot listen there"),
        # said while the engine loads, which here has no end
        (["--device", "hang", "--chat-template", "/no/such/file"], "--chat-template: cannot read '/no/such/file'"),
        (["--device", "hang", "--lora-modules", "a=/nowhere"], "--lora-modules: cannot read '/nowhere/adapter_config"),
        (["--device", "hang", "--tokenizer", "/nowhere"], "tokenizer.json: is missing"),
        (["--device", "fail", "--tokenizer", "/nowhere"], ""),  # whichever is first, and no traceback of the other
        (["--api-key", ""], "--api-key: must have at least 1 character, not ''"),
        (["--api-key-file", "/dev/null"], "--api-key-file: /dev/null has no key: that would let everybody in"),
        (["--api-key-file", "/nowhere"], "--api-key-file: cannot read '/nowhere'"),
    ],
)
def test_what_stops_the_start_is_one_line_and_exit_code_2(checkpoint: Path, args: list[str], complaint: str) -> None:
    ended = run_command("serve", str(checkpoint), "--port", "0", *args)
    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert ended.returncode == 2
    assert len(lines) == 1
    assert lines[0].startswith("neuronserve")
    assert complaint in lines[0]


def test_a_port_in_use_is_said_at_once(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_command("serve", str(checkpoint), "--port", port)
    assert ended.returncode == 2
    assert f"--port {port}: cannot listen there: Address already in use" in ended.stderr


def test_an_engine_that_dies_while_loading_is_exit_code_1(checkpoint: Path) -> None:
    ended = run_command("serve", str(checkpoint), "--port", "0", "--device", "crash")
    assert ended.returncode == 1
    assert ") has ended with exit code 7" in ended.stderr


def test_sigterm_while_loading_ends_the_start(checkpoint: Path) -> None:
    argv = command("serve", str(checkpoint), "--port", "0", "--device", "hang")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, env=environment()) as process:
        assert "loading" in read_until(process, b"loading the fake model")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_a_server_serves_with_its_engine_in_a_thread(checkpoint: Path) -> None:
    with running_server(checkpoint, "--engine-mode", "thread") as server:
        answer = httpx.post(server.url + "/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.slow
def test_optimized_python_changes_nothing(checkpoint: Path) -> None:
    with running_server(checkpoint, env=environment(PYTHONOPTIMIZE="2")) as server:
        assert httpx.post(server.url + "/v1/completions", json={"prompt": "", "max_tokens": 1}).status_code == 400
        assert httpx.get(server.url + "/health/ready").status_code == 200
