"""Checkpoints with one file that is wrong, and how the command ends on them: `python -m tests.api.bad_checkpoints`.

The script starts the real server on each and prints its exit code, the seconds until it said what is wrong, those until
it had ended, and processes that were left.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronserve.server.settings.model import DEFAULT_MODEL
from tests.api.serving import ROOT, environment

LIMIT_S = 120.0  # that only a hang reaches
Spoil = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One wrong file. `named` is what the message has beside the file's name."""

    name: str
    file: str
    spoil: Spoil
    named: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """How a start has ended. `code` is None where the server was ready."""

    code: int | None
    message: str
    said_s: float
    ended_s: float
    left: int


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def _nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


FORMS: dict[str, Spoil] = {
    "empty": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(b"{nonsense"),
    "a list": lambda path: path.write_bytes(b"[]"),
    "a directory": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a dangling link": _dangling,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "NUL": lambda path: path.write_bytes(b"\0" * 64),
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff\xfe"}'),
    "nested deep": lambda path: path.write_bytes(_nested(100_000)),
    "a number of a million digits": lambda path: path.write_bytes(b'{"a": ' + b"9" * 10**6 + b"}"),
}
# Files that are JSON objects, and are read where they are there.
JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
)
WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "generation_config.json": {
        "temperature": ("x", -1, 1e300, [], {}),
        "top_p": ("x", 0, 2),
        "top_k": ("x", 1.5, 10**30),
        "min_p": ("x", -1),
        "repetition_penalty": ("x", 0),
        "max_new_tokens": ("x", 0, 10**30),
        "eos_token_id": ("x", -1, [None], {"a": 1}),
    },
    "config.json": {
        "architectures": ("x", [], [1], ["NoSuchModel"]),
        "model_type": (1, "none", None),
        "hidden_size": ("x", 0, -1, 10**30, 1.5, None),
        "num_hidden_layers": ("x", 0, 10**30),
        "num_attention_heads": ("x", 0, 10**9),
        "num_key_value_heads": ("x", 0, 7),
        "intermediate_size": ("x", 0, 10**30),
        "vocab_size": ("x", 0, 1, 10**30),
        "max_position_embeddings": ("x", 0, 10**30),
        "rms_norm_eps": ("x", -1),
        "hidden_act": (1, "nonsense"),
        "tie_word_embeddings": ("x", 1),
        "rope_theta": ("x", -1),
        "rope_scaling": ("x", {"rope_type": "nonsense"}, {"rope_type": "yarn", "factor": "x"}),
        "eos_token_id": ("x", -1),
        "quantization_config": ("x", {}, {"quant_method": "nonsense"}),
    },
    "tokenizer_config.json": {
        "chat_template": (1, [1], [{"name": "default"}], "{% for %}", "{{ 'a'|nonsense }}"),
        "bos_token": (1, []),
        "eos_token": (1, {"content": 1}),
    },
}


def _with(key: str, value: Any) -> Spoil:
    def spoil(path: Path) -> None:
        source = DEFAULT_MODEL / path.name
        content = json.loads(source.read_text()) if source.exists() else {}
        path.write_text(json.dumps({**content, key: value}))

    return spoil


def _written(content: bytes) -> Spoil:
    return lambda path: path.write_bytes(content)


def _header(text: bytes, length: int | None = None, data: bytes = b"") -> Spoil:
    """Weights whose header is `text`, whatever length the file says."""
    return _written((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def _tensor(dtype: str, rows: int) -> bytes:
    return json.dumps({"a": {"dtype": dtype, "shape": [rows], "data_offsets": [0, 4]}}).encode()


KINDS = ("a directory", "a FIFO", "a dangling link", "a device")
HEADERS = {
    "a header of 2^63 bytes": _header(b"{}", 2**63),
    "an empty header": _header(b"{}"),
    "a header that is a list": _header(b"[]"),
    "a nested header": _header(_nested(100_000)),
    "a tensor of 2^62 rows": _header(_tensor("F32", 2**62)),
    "an unknown dtype": _header(_tensor("X", 1), data=b"0000"),
}


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _json_cases()
    yield from _template_cases()
    yield from _weight_cases()
    yield from _adapter_and_gguf_cases()


def _json_cases() -> Iterator[Case]:
    for file in JSON_FILES:
        for form, spoil in FORMS.items():
            yield Case(f"{file} is {form}", file, spoil)
    for file, keys in WRONG.items():
        for key, value in ((key, value) for key, values in keys.items() for value in values):
            yield Case(f"{file}: {key} is {str(value)[:20]!r}", file, _with(key, value), key)


def _template_cases() -> Iterator[Case]:
    file = "chat_template.jinja"
    for form in KINDS:
        yield Case(f"{file} is {form}", file, FORMS[form])
    for form, text in {"no template": b"{% if %}", "not UTF-8": b"\xff\xfe", "endless": b"{{ 10 ** 10 ** 9 }}"}.items():
        yield Case(f"{file} is {form}", file, _written(text))


def _weight_cases() -> Iterator[Case]:
    weights, index, manifest = "model.safetensors", "model.safetensors.index.json", "neuronserve.json"
    for form in ("empty", "NUL", "not UTF-8", *KINDS):
        yield Case(f"{weights} is {form}", weights, FORMS[form])
    for name, spoil in HEADERS.items():
        yield Case(f"{weights} has {name}", weights, spoil)
    for file, (form, spoil) in itertools.product((index, manifest), FORMS.items()):
        yield Case(f"{file} is {form}", file, spoil)
    for name, shard in {
        "of a number": 1,
        "that leads out": "../x.safetensors",
        "that is missing": "a.safetensors",
    }.items():
        yield Case(f"{index} has a shard {name}", index, _with("weight_map", {"a": shard}))


def _adapter_and_gguf_cases() -> Iterator[Case]:
    for file, form in itertools.product(("adapter_config.json", "adapter_model.safetensors"), FORMS):
        yield Case(f"adapter: {file} is {form}", file, FORMS[form], "", ("--enable-lora", "--lora-modules"))
    for form, spoil in FORMS.items():
        yield Case(f"model.gguf is {form}", "model.gguf", spoil)
    counts = _written(b"GGUF\3\0\0\0" + b"\xff" * 16)
    yield Case("model.gguf has counts of 2^64", "model.gguf", counts)


def model_of(case: Case, directory: Path) -> list[str]:
    """Make the model below `directory`; what the command gets."""
    if case.file == "model.gguf":
        case.spoil(directory / case.file)
        return [str(directory / case.file)]
    model = directory / "model"
    shutil.copytree(DEFAULT_MODEL, model)
    place = model
    arguments: list[str] = []
    if case.arguments:
        place = directory / "adapter"
        place.mkdir()
        (place / "adapter_config.json").write_text(
            '{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}'
        )
        arguments = [*case.arguments, f"a={place}"]
    if case.file.endswith("index.json"):
        (model / "model.safetensors").unlink()
    if case.named == "chat_template":
        (model / "chat_template.jinja").unlink()  # it would be taken instead
    (place / case.file).unlink(missing_ok=True)
    case.spoil(place / case.file)
    return [str(model), *arguments]


def start(case: Case, directory: Path, kernel_cache: str) -> Ending:
    """Start the server and wait for its end, or until it is ready."""
    argv = [sys.executable, "-m", "neuronserve", "serve", *model_of(case, directory), "--port", "0"]
    begin, said, lines = time.monotonic(), 0.0, []
    process = subprocess.Popen(
        [*argv, "--kernel-cache-dir", kernel_cache],
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment(XDG_CACHE_HOME=str(directory / "cache")),
        start_new_session=True,
        text=True,
        errors="replace",
    )
    assert process.stderr is not None
    killer = subprocess.Popen(["sh", "-c", f"sleep {LIMIT_S}; kill -9 -{process.pid}"], start_new_session=True)
    try:
        for line in process.stderr:
            lines.append(line)
            if "error: " in line:
                said = time.monotonic() - begin
            if re.search(r"ready: http", line):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return Ending(None, line.strip(), 0.0, time.monotonic() - begin, 0)
        code = process.wait()
        ended = time.monotonic() - begin
        left = _left(process.pid)
    finally:
        os.killpg(killer.pid, signal.SIGKILL)
        killer.wait()
        process.stderr.close()
    text = "".join(lines)
    last = next((line for line in reversed(lines) if "error: " in line), text[-400:])
    if "Traceback" in text:
        last = "Traceback: " + last
    return Ending(code, last.strip(), said or ended, ended, left)


def _left(session: int) -> int:
    """Processes of a session that has ended, but for those that are ending."""
    deadline = time.monotonic() + 5
    while True:
        found = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found += fields[3] == str(session) and fields[0] != "Z"
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def main() -> int:
    """Print a line for each case; 1 when one did not end as it should."""
    pattern = sys.argv[1] if len(sys.argv) > 1 else ""
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, case in enumerate(each for each in cases() if re.search(pattern, each.name)):
            directory = Path(scratch, str(number))
            directory.mkdir()
            ending = start(case, directory, str(Path.home() / ".cache/neuronserve/kernels"))
            slow = ending.ended_s - ending.said_s > 5
            wrong = ending.code in (None, -9) or slow or ending.left or "Traceback" in ending.message
            bad += bool(wrong)
            seconds = f"{ending.said_s:5.1f} {ending.ended_s - ending.said_s:5.2f} s"
            verdict = f"{'!!' if wrong else 'ok'} rc {ending.code} {seconds} left {ending.left}"
            print(f"{verdict} {case.name} | {ending.message[:230]}", flush=True)
            shutil.rmtree(directory, ignore_errors=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
