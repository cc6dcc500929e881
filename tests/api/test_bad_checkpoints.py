"""Starts on checkpoints with one file that is wrong: each ends with a message, an exit code, and no process left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.bad_checkpoints import LIMIT_S, Case, cases, start
from tests.depth import thorough

# One of each kind that once hung or took another way out; the others are for `make test-all`.
FIRST = {
    "generation_config.json: temperature is 'x'",
    "generation_config.json is a FIFO",
    "tokenizer.json is a FIFO",
    "chat_template.jinja is a FIFO",
    "model.safetensors is a FIFO",
    "model.safetensors is a device",
    "neuronserve.json is a FIFO",
    "config.json is nested deep",
    "adapter: adapter_config.json is a FIFO",
    "model.gguf is a FIFO",
}
# What a server starts with all the same: files and values that it does not read, or that are as good as none.
SERVED = {f"config.json: model_type is {value!r}" for value in ("1", "none", "None")} | {
    "config.json: quantization_config is '{}'",
    "chat_template.jinja is endless",  # each rendering is ended after two seconds
}
# A value that is right by itself and is not the weights', or that the message calls by what it is.
UNNAMED = {
    "config.json: hidden_size is 'None'",
    "config.json: vocab_size is '1'",
    "config.json: architectures is '[1]'",
    """config.json: architectures is "['NoSuchModel']\"""",
}
ALL = {case.name: case for case in cases()}


def test_the_first_ones_are_in_the_table() -> None:
    assert ALL.keys() >= FIRST | SERVED | UNNAMED
    assert not FIRST & SERVED


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in FIRST else thorough(name) for name in sorted(ALL)])
def test_a_start_on_a_wrong_file_ends(name: str, tmp_path: Path, kernel_cache: str) -> None:
    case: Case = ALL[name]
    ending = start(case, tmp_path, kernel_cache)
    if name in SERVED:
        assert ending.code is None, ending
        return
    assert ending.code in (1, 2), ending
    assert "error: " in ending.message, ending
    assert "Traceback" not in ending.message, ending
    message = ending.message.replace("chat template", "chat_template")  # which file it is from, is not known there
    stem = case.named if case.named == "chat_template" else case.file.partition(".")[0]
    assert stem in message, "it names the file"
    assert case.named in message or name in UNNAMED, "it names the key"
    assert ending.left == 0
    assert ending.ended_s - ending.said_s < LIMIT_S / 2, "it ends once it has said why"
