"""Objects of one server that outlive a request: responses, and with a data directory files and batches."""

from __future__ import annotations

import logging
from pathlib import Path

from ...errors import InvalidRequest, SettingsError, StorageFull
from ...host.private_file import make_private_directory, open_private, tighten
from ..config import StoreConfig
from .batches import BatchStore
from .conversations import ConversationStore
from .database import Database
from .files import FileStore
from .records import TABLES
from .responses import ResponseStore

log = logging.getLogger("neuronserve.api")
DATABASE = "neuronserve.sqlite3"
OWN = frozenset({"files", "neuronserve.lock", "lost+found"})  # files beside the database
NO_DATA_DIR = "Files and batches need a place that survives the server: start it with --data-dir DIR."


def _make_private(directory: Path) -> None:
    """Make a data directory and its database private to this user; a directory with other files is left alone.

    SQLite gives its own files the rights of the database.
    """
    make_private_directory(directory)
    if not any(True for each in directory.iterdir() if each.name not in OWN and not each.name.startswith(DATABASE)):
        tighten(directory)
    for file in (directory / DATABASE, *directory.glob(f"{DATABASE}-*")):
        if file.name == DATABASE or file.exists():
            open_private(file, "ab").close()


def _opened(directory: Path | None) -> Database:
    """Open the database of a data directory, or one in memory. Raises SettingsError."""
    if directory is None:
        return Database(None, TABLES)
    try:
        _make_private(directory)
    except OSError as error:
        raise SettingsError(f"--data-dir: cannot use {directory}: {error.strerror}") from error
    return Database(directory / DATABASE, TABLES)


class Store:
    """Opened by its constructor. Raises SettingsError when the named data directory cannot be used."""

    def __init__(self, config: StoreConfig) -> None:
        directory = config.data_dir or config.default_dir
        try:
            self._database = _opened(directory)
        except SettingsError as error:
            if config.data_dir is not None:
                raise
            log.warning("responses are kept in memory, and files and batches are refused: %s", error)
            directory, self._database = None, _opened(None)
        self.limits = config
        self.responses = ResponseStore(self._database, config)
        self.conversations = ConversationStore(self._database, config)
        self._files = FileStore(self._database, directory / "files", config) if directory else None
        self._batches = BatchStore(self._database)

    @property
    def is_durable(self) -> bool:
        """Whether the server has a data directory."""
        return self._files is not None

    @property
    def files(self) -> FileStore:
        """Raises InvalidRequest without a data directory."""
        if self._files is None:
            raise InvalidRequest(NO_DATA_DIR, code="no_data_dir")
        return self._files

    @property
    def batches(self) -> BatchStore:
        """Raises InvalidRequest without a data directory."""
        _ = self.files  # raises
        return self._batches

    async def recover(self) -> None:
        """Repair what an earlier server left, before anything is stored, as far as a full disk allows."""
        try:
            await self.responses.recover()
            if self._files is not None:
                await self._files.clean()
        except StorageFull as error:
            log.warning("%s", error)

    async def close(self) -> None:
        """Close the data directory."""
        await self._database.close()
