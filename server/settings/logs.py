"""Log of a server on stderr: text lines, or one JSON object a line."""

import json
import logging
import sys
import time
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]
_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr, which a progress bar replaces while it is shown."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        del stream
        raise AttributeError("it is always sys.stderr")


class JsonLines(logging.Formatter):
    """`time` (UTC), `level`, `logger` and `message`, then the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _KNOWN},
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def log_to_stderr(level: str, form: LogFormat = "text", has_access_log: bool = True) -> None:
    """Write messages of `level` (a name, such as info) and above to stderr."""
    handler = StderrHandler()
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("neuronserve.access").setLevel(logging.NOTSET if has_access_log else logging.WARNING)
    for chatty in ("numba", "asyncio", "httpcore", "httpx", "urllib3", "filelock", "matplotlib"):
        logging.getLogger(chatty).setLevel(max(logging.INFO, logging.getLevelName(level.upper())))
