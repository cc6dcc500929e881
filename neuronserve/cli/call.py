"""Arguments of one subcommand, and a parser that reports an error in one line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from textwrap import shorten
from typing import TYPE_CHECKING, NoReturn, TypeVar

from neuronserve.server.settings.help_groups import ALL_FLAG

if TYPE_CHECKING:
    from neuronserve.server.config import EngineConfig
    from neuronserve.server.link.handle import EngineMain
    from neuronserve.server.placement.shared_cores import Account
    from neuronserve.server.settings.base import Settings

Kind = TypeVar("Kind", bound="Settings")
MakeAccount = Callable[["EngineConfig"], "Account"]


HELP_COLUMN, MOST_METAVAR = 32, 14


class BriefHelp(argparse.HelpFormatter):
    """Help of one line a flag: its first form, its value, and the beginning of its description."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=HELP_COLUMN)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        name = action.option_strings[-1] if action.option_strings[0] == "-h" else action.option_strings[0]
        value = "" if action.nargs == 0 else f" {action.metavar or ''}"
        return name + (value if len(value) <= MOST_METAVAR and "{" not in value else " NAME")

    def _split_lines(self, text: str, width: int) -> list[str]:
        first = re.split(r"[;(]|: ", text, maxsplit=1)[0].strip()
        return [shorten(first, width, placeholder=" ...")]


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        if unknown := re.match(r"argument (COMMAND|WHAT): invalid choice: '(.*)' \(choose from (.*)\)$", message):
            near = get_close_matches(unknown[2], re.findall(r"[\w-]+", unknown[3]), 1)
            message = f"there is no command {unknown[2]!r}{''.join(f': did you mean {name}?' for name in near)}"
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one subcommand."""

    name: str  # "bench latency"
    what: str
    argv: Sequence[str]  # after the name
    engine: EngineMain  # main function of an engine's process
    account: MakeAccount  # of an engine's memory, in a process of its own
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
        is_brief = kind.has_headings and ALL_FLAG not in self.argv
        settings = load_settings(kind, self.argv, self.parser(kind.has_headings, is_brief))
        settings.put_in_force()
        for notice in settings.notices:
            print(f"neuronserve: {notice}", file=sys.stderr)
        return settings

    def parser(self, has_advanced: bool = False, is_brief: bool = False) -> Parser:
        """Return a parser without arguments. Its help says where values come from, and how to see advanced settings."""
        formatter = BriefHelp if is_brief else argparse.HelpFormatter
        where = "Each setting can also come from NEURONSERVE_<NAME> or the --config file."
        more = f" {ALL_FLAG} lists all of them in full." if has_advanced else ""
        description = f"{self.what[0].upper()}{self.what[1:]}. {where}{more}"
        prog = f"neuronserve {self.name}"
        usage = f"{prog} [MODEL] [--help | {ALL_FLAG}] [flags]" if has_advanced else None
        return Parser(prog=prog, usage=usage, description=description, allow_abbrev=False, formatter_class=formatter)
