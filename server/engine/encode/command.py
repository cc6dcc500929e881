"""`neuronserve embed`: embeddings or scores of texts without a server, as lines or a JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...config import EncodeConfig
from ...errors import InvalidRequest, SettingsError
from ...text.encoder_tokenizer import TextOrPair
from .loading import LoadedEncoder, load_encoder
from .options import EmbedOptions

SHOWN = 6  # values of a vector in a line

Float32 = npt.NDArray[np.float32]


def run_embed(config: EncodeConfig, options: EmbedOptions) -> None:
    """Load, encode and print. Raises SettingsError for texts that cannot be encoded, and as loading does."""
    texts = _texts(options)
    loaded = load_encoder(config, lambda line: print(f"neuronserve: {line}", file=sys.stderr))
    for note in loaded.notes:
        print(f"neuronserve: {note}", file=sys.stderr)
    try:
        tokens = loaded.tokenizer.encode(_with_prompt(texts, options, loaded))
        rows = loaded.encoder.encode(tokens)
        if options.dimensions is not None:
            rows = loaded.encoder.shortened(rows, options.dimensions)
    except InvalidRequest as error:
        raise SettingsError(str(error)) from error
    finally:
        loaded.encoder.close()
    if options.format == "json":
        num_tokens = sum(len(each.token_ids) for each in tokens)
        print(json.dumps(as_json(options.model_name, rows, loaded.encoder.head.labels, num_tokens)))
        return
    for text, row in zip(texts, rows, strict=True):
        print(f"{_shown(row, loaded.encoder.head.labels)}  {text}")


def as_json(model: str, rows: Float32, labels: Sequence[str], num_tokens: int) -> dict[str, object]:
    """Return an object in the form of OpenAI's embeddings; a classifier's rows are scores by label."""
    kind = "scores" if labels else "embedding"
    data = [
        {"object": kind, "index": i, kind: dict(zip(labels, row, strict=True)) if labels else row}
        for i, row in enumerate(rows.astype(float).tolist())
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return {"object": "list", "model": model, "data": data, "usage": usage}


def _texts(options: EmbedOptions) -> tuple[str, ...]:
    """Return the texts of the arguments and the file. Raises SettingsError for an unreadable file."""
    if options.file is None:
        return options.texts
    try:
        text = sys.stdin.read() if options.file == Path("-") else options.file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SettingsError(f"file {options.file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"file {options.file} is not UTF-8: {error.reason} at byte {error.start}") from error
    return (*options.texts, *text.splitlines())


def _with_prompt(texts: Sequence[str], options: EmbedOptions, loaded: LoadedEncoder) -> list[TextOrPair]:
    if options.query is not None:
        return [(options.query, text) for text in texts]
    sentence, prompt = loaded.sentence, options.prompt
    name = options.prompt_name or sentence.default_prompt_name
    if prompt is None and name is not None:
        if name not in sentence.prompts:
            known = ", ".join(sentence.prompts) or "none"
            raise SettingsError(f"prompt_name is {name!r}: the model's prompts are {known}")
        prompt = sentence.prompts[name]
    return [(prompt or "") + text for text in texts]


def _shown(row: Float32, labels: Sequence[str]) -> str:
    if labels:
        return " ".join(f"{label} {score:.4f}" for label, score in zip(labels, row, strict=True))
    values = " ".join(f"{value:+.4f}" for value in row[:SHOWN])
    return f"[{values}{' ...' if len(row) > SHOWN else ''}] ({len(row)})"
