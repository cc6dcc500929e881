"""A GGUF file as a checkpoint's directory, written once into a cache.

Configuration, tokenizer and chat template are made from the metadata; the weights are links to the GGUF files. So all
readers of a checkpoint's directory can read this one, in every process.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import SettingsError
from ...host.private_file import is_trusted
from .config import config_of
from .encoder_architectures import pooling_modules
from .files import GgufFiles, open_gguf, parts_of
from .pictures import with_pictures
from .tokenizer import CONTROL, GgufVocabulary, tokenizer_of

LINK = "model.gguf"  # link to the first file; others are numbered
EYES_LINK = "mmproj.gguf"  # link to the file of the vision encoder
FORM = 4  # version of the directory: raised when the same file would give other contents
TEMPLATE = "tokenizer.chat_template"
# Tokens that end an assistant's turn though no key names them (src/llama-vocab.cpp of llama.cpp, end of turn).
TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", "[|endofturn|]")


def gguf_directory(file: Path, cache: Path, mmproj: Path | None = None) -> Path:
    """Return the directory below `cache` for the model in `file`, which may be one file of several.

    `mmproj` is the file of its vision encoder.

    Raises CheckpointError for a file that cannot be served, SettingsError when the cache cannot be written.
    """
    parts, eyes = parts_of(file.absolute()), [] if mmproj is None else [mmproj.absolute()]
    state = __version__, FORM, [(str(part), _state(part)) for part in (*parts, *eyes)]
    key = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    directory = cache / f"{file.stem}-{key}"
    if directory.is_dir():
        if not is_trusted(directory.stat()):
            raise SettingsError(f"{directory} is another user's, or any user may write there: name another cache")
        return directory
    made = _derived(open_gguf(parts), open_gguf(eyes) if eyes else None)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{file.stem}.") as place:
            partial = Path(place) / "model"
            partial.mkdir()
            for name, text in made.items():
                (partial / name).parent.mkdir(exist_ok=True)
                (partial / name).write_text(text, encoding="utf-8")
            for number, part in enumerate(parts):
                (partial / _link(number)).symlink_to(part)
            for part in eyes:
                (partial / EYES_LINK).symlink_to(part)
            try:
                partial.rename(directory)
            except OSError:
                if not directory.is_dir():  # otherwise another process has written the same directory
                    raise
    except OSError as error:
        raise SettingsError(f"cache directory {cache} cannot be written: {error.strerror}") from error
    return directory


def linked_parts(directory: Path) -> list[Path]:
    """Return the GGUF files of a directory that `gguf_directory` wrote; none for another directory."""
    found: list[Path] = []
    while (link := directory / _link(len(found))).is_symlink():
        found.append(link.readlink())
    return found


def linked_eyes(directory: Path) -> list[Path]:
    """Return the GGUF file of the vision encoder of a directory that `gguf_directory` wrote; none for another one."""
    return [link.readlink()] if (link := directory / EYES_LINK).is_symlink() else []


def _link(number: int) -> str:
    return LINK if number == 0 else f"model-{number + 1:05}.gguf"


def _state(part: Path) -> tuple[int, int] | None:
    """Return size and time of modification, by which a changed file is noticed."""
    try:
        stat = os.stat(part)
    except OSError:
        return None  # refused when it is opened
    return stat.st_size, stat.st_mtime_ns


def _derived(files: GgufFiles, eyes: GgufFiles | None) -> dict[str, str]:
    """Return the text of each file beside the weights."""
    vocabulary = GgufVocabulary(files)
    config = config_of(files)
    pictures: dict[str, Any] = {}
    tokenizer = {
        **vocabulary.special(),
        "model_max_length": config.get("max_position_embeddings"),
        **_templates(files.metadata),
    }
    if eyes is not None:
        config, pictures["preprocessor_config.json"] = with_pictures(config, files, vocabulary.tokens, eyes)
    return {
        "config.json": json.dumps(config, indent=1),
        "generation_config.json": json.dumps({"eos_token_id": _turn_ends(vocabulary)}),
        "tokenizer_config.json": json.dumps(tokenizer, indent=1),
        "tokenizer.json": str(tokenizer_of(vocabulary, files).to_str()),
        **{name: json.dumps(values) for name, values in (pooling_modules(files) | pictures).items()},
    }


def _turn_ends(vocabulary: GgufVocabulary) -> list[int]:
    named = (vocabulary.token_id(key) for key in ("eos", "eot", "eom"))
    known = (vocabulary.tokens.index(token) for token in TURN_ENDS if token in vocabulary.tokens)
    ends = (*named, *(i for i in known if vocabulary.types[i] == CONTROL))
    return list(dict.fromkeys(i for i in ends if i is not None))


def _templates(metadata: Mapping[str, object]) -> dict[str, Any]:
    """Return the chat template, or all of them by name where the file has several."""
    texts = {
        key.removeprefix(TEMPLATE).removeprefix(".") or "default": value
        for key, value in metadata.items()
        if isinstance(value, str) and (key == TEMPLATE or key.startswith(f"{TEMPLATE}."))
    }
    if set(texts) <= {"default"}:
        return {"chat_template": texts["default"]} if texts else {}
    return {"chat_template": [{"name": name, "template": text} for name, text in texts.items()]}
