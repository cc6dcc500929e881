"""A call of a subcommand, and a parser with errors of one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

if TYPE_CHECKING:
    from neuronserve.server.link.handle import EngineMain
    from neuronserve.server.settings.base import Settings

Kind = TypeVar("Kind", bound="Settings")


class Parser(argparse.ArgumentParser):
    """Argument parser whose errors have one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a subcommand."""

    name: str  # "bench latency"
    what: str
    argv: Sequence[str]  # after the name
    engine: EngineMain  # main function of engine processes
    siblings: Mapping[str, str]  # all commands with their descriptions

    def settings(self, kind: type[Kind]) -> Kind:
        """Return the settings of the call and put them in force. Raises SettingsError."""
        from neuronserve.server.settings.sources import load_settings, misspelt_variables

        if suspects := misspelt_variables(kind):
            from neuronserve.cli.every import refuse_misspelt

            refuse_misspelt(suspects)
        settings = load_settings(kind, self.argv, self.parser())
        settings.put_in_force()
        for notice in settings.notices:
            print(f"neuronserve: {notice}", file=sys.stderr)
        return settings

    def parser(self) -> Parser:
        """Return a parser without arguments; its description names the sources of settings."""
        where = "Each setting can also come from NEURONSERVE_<NAME> or the --config file."
        description = f"{self.what[0].upper()}{self.what[1:]}. {where}"
        return Parser(prog=f"neuronserve {self.name}", description=description, allow_abbrev=False)
