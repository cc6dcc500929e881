"""Local directory of a model by its path or hub id: downloaded from the hub, or made of a GGUF file.

The only file that may touch the network, and it does so only for a hub id. Downloads no pickle and no code.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars

from ..errors import SettingsError
from .gguf.directory import gguf_directory
from .gguf.header import is_gguf
from .wanted import UNWANTED, WANTED, refuse_pointers

log = logging.getLogger("neuronserve")

# Reasons of refusals. The first match counts, so subclasses come before their parents.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (HFValidationError, "it is neither a local directory nor a well-formed hub id (owner/name)"),
    (GatedRepoError, "the repository is gated: accept its terms on the hub and provide an access token"),
    (RepositoryNotFoundError, "the hub has no such repository, or it is private and no access token was provided"),
    (RevisionNotFoundError, "the repository has no such revision"),
    (OfflineModeIsEnabled, "the hub is switched off (HF_HUB_OFFLINE) and the model is not in the local cache"),
    (LocalEntryNotFoundError, "the hub cannot be reached and the model is not in the local cache"),
    (EntryNotFoundError, "the repository has no such file"),
    (HfHubHTTPError, "the hub refused"),
    (Exception, "the download failed"),
)


def resolve_model(path_or_id: str, revision: str | None, gguf_cache: Path, mmproj: str | None = None) -> Path:
    """Return the local directory of the checkpoint `path_or_id`, downloaded first when it is a hub id.

    An existing directory or GGUF file is used without network access; a file gets a directory below `gguf_cache`.
    `mmproj` is the GGUF file of the vision encoder beside that of the text.
    Raises CheckpointError for a GGUF file that cannot be served and for a pointer of Git LFS, and SettingsError when
    the directory is missing, the id is malformed or unknown, access is denied, or the hub cannot be reached.
    """
    local = os.path.expanduser(path_or_id)
    if os.path.exists(local) and revision is not None:
        kind = "directory" if os.path.isdir(local) else "file"
        raise SettingsError(f"revision is {revision!r}, but {path_or_id!r} is a local {kind}, which has no revisions")
    if is_gguf(Path(local)):
        refuse_pointers(Path(local))
        return gguf_directory(Path(local), gguf_cache, None if mmproj is None else Path(os.path.expanduser(mmproj)))
    if mmproj is not None:
        raise SettingsError(f"mmproj is {mmproj!r}, but the model {path_or_id!r} is no GGUF file")
    if os.path.isdir(local):
        refuse_pointers(Path(local))
        return Path(local)
    if os.path.exists(local):
        reason = "a checkpoint is a directory with a config.json, or a GGUF file"
        raise SettingsError(f"model {path_or_id!r} is a file; {reason}")
    if path_or_id.startswith((".", "/", "~")):
        raise SettingsError(f"model directory {path_or_id!r} does not exist")
    return _download(path_or_id, revision)


def _download(repo_id: str, revision: str | None) -> Path:
    """Download with the library's progress bars on a terminal, and with log lines elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        disable_progress_bars()
    log.info("downloading %s, unless it is in the local cache", repo_id)
    begin = time.perf_counter()
    try:
        directory = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
        log.info("%s is in %s, after %.1f s", repo_id, directory, time.perf_counter() - begin)
        return Path(directory)
    except Exception as error:  # the library also raises errors of its HTTP client, which differ by release
        reason = next(reason for kind, reason in _REASONS if isinstance(error, kind))
        at = "" if revision is None else f" at revision {revision!r}"
        detail = str(error).strip().split("\n", 1)[0] or type(error).__name__
        message = f"model {repo_id!r}{at}: no such local directory, and as a hub id: {reason} ({detail})"
        raise SettingsError(message) from error
