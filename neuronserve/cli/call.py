"""Arguments of one subcommand, and a parser that reports an error in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

from neuronserve.server.settings.help_groups import ADVANCED_FLAG

if TYPE_CHECKING:
    from neuronserve.server.link.handle import EngineMain
    from neuronserve.server.settings.base import Settings

Kind = TypeVar("Kind", bound="Settings")


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one subcommand."""

    name: str  # "bench latency"
    what: str
    argv: Sequence[str]  # after the name
    engine: EngineMain  # main function of an engine's process
    siblings: Mapping[str, str]  # description of every command

    @property
    def divided(self) -> tuple[Sequence[str], Sequence[str]]:
        """The arguments before the first `--`, and those behind it."""
        end = self.argv.index("--") if "--" in self.argv else len(self.argv)
        return self.argv[:end], self.argv[end + 1 :]

    def settings(self, kind: type[Kind]) -> Kind:
        """Return the settings of the call, after putting them in force. Raises SettingsError."""
        from neuronserve.server.settings.sources import load_settings, misspelt_variables

        if suspects := misspelt_variables(kind):
            from neuronserve.cli.every import refuse_misspelt

            refuse_misspelt(suspects)
        settings = load_settings(kind, self.argv, self.parser(kind.has_headings))
        settings.put_in_force()
        for notice in settings.notices:
            print(f"neuronserve: {notice}", file=sys.stderr)
        return settings

    def parser(self, has_advanced: bool = False) -> Parser:
        """Return a parser without arguments. Its help says where values come from, and how to see advanced settings."""
        where = "Each setting can also come from NEURONSERVE_<NAME> or the --config file."
        more = f" With {ADVANCED_FLAG}, --help lists the advanced settings too." if has_advanced else ""
        description = f"{self.what[0].upper()}{self.what[1:]}. {where}{more}"
        prog = f"neuronserve {self.name}"
        usage = f"{prog} [MODEL] [--help [{ADVANCED_FLAG}]] [flags]" if has_advanced else None
        return Parser(prog=prog, usage=usage, description=description, allow_abbrev=False)
