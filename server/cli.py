"""The `neuronserve` command: one small function for each subcommand. Imports as late as it can, for a fast start."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from server import __version__
from server.engine.process import EngineProcess, Loader
from server.errors import StartError
from server.settings import ServeSettings, add_serve_arguments, load_serve_settings


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command; returns the exit code."""
    from server.engine.load import load_engine

    return run(argv, load_engine)


def run(argv: Sequence[str] | None, loader: Loader) -> int:
    """`main` with the engine's loader as an argument."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command")
    try:
        if command == "version":
            print(__version__)
        else:
            serve(load_serve_settings(arguments), loader)
    except StartError as error:
        print(f"neuronserve: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def serve(settings: ServeSettings, loader: Loader) -> None:
    """Run the server. The engine's process starts before the heavy imports of the API, and loads meanwhile."""
    _log_to_stderr(settings.log_level)
    model_path = _model_path(settings)
    engine = EngineProcess(settings.engine_config(model_path), loader, settings.engine_mode)
    try:
        from server.api import server

        listener = server.bind(settings.host, settings.port)
        server.serve(settings.api_config(model_path), engine, listener)
    finally:
        engine.close()


def _model_path(settings: ServeSettings) -> Path:
    """The local directory of the model; a hub id is downloaded first."""
    if os.path.isdir(settings.model) and settings.revision is None:
        return Path(settings.model)
    from server.engine.hub import resolve_model

    return resolve_model(settings.model, settings.revision)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _parser() -> _Parser:
    parser = _Parser(prog="neuronserve", description="OpenAI-compatible LLM server for emulated Inferentia devices.")
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    serving = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        allow_abbrev=False,
        description="Serve MODEL over HTTP. Each setting can also come from NEURONSERVE_<NAME> or the --config file.",
    )
    add_serve_arguments(serving)
    commands.add_parser("version", help="print the version")
    return parser
