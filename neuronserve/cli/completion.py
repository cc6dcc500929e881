"""Completion scripts of commands and flags for three shells, made from the table of commands and their settings."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from neuronserve.server.device.catalog import instances
from neuronserve.server.settings.base import Settings
from neuronserve.server.settings.sources import add_flags

NUMBERS = frozenset({"N", "X"})


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of `--help`. Its value is one of `choices`, a number (not completed), or a file name."""

    names: tuple[str, ...]
    what: str
    has_value: bool = False
    is_number: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand, such as "bench latency"."""

    name: str
    what: str
    flags: tuple[Flag, ...]

    @property
    def group(self) -> str:
        """The word before the last one; empty if there is none."""
        return self.name.rpartition(" ")[0]

    @property
    def last(self) -> str:
        return self.name.rpartition(" ")[2]


def described(commands: Mapping[str, str], parsers: Mapping[str, ArgumentParser]) -> tuple[Command, ...]:
    """Return every command, with the flags of its `--help` where it has a parser."""
    return tuple(
        Command(name, what, tuple(_flags(parsers[name])) if name in parsers else ()) for name, what in commands.items()
    )


def settings_parser(kind: type[Settings]) -> ArgumentParser:
    """Return a parser with the flags of settings."""
    parser = ArgumentParser()
    add_flags(kind, parser)
    return parser


def _flags(parser: ArgumentParser) -> Iterator[Flag]:
    for action in parser._actions:
        names = tuple(action.option_strings)
        if not names:  # the model, or another word without a flag
            continue
        flag = Flag(names, (action.help or "").replace("%%", "%"))
        if action.nargs == 0:
            yield flag
            continue
        metavar = str(action.metavar or "")
        choices = tuple(metavar[1:-1].split(",")) if metavar.startswith("{") else tuple(action.choices or ())
        if "--device" in names:
            choices = tuple(part.name for part in instances())
        yield replace(flag, has_value=True, is_number=metavar in NUMBERS, choices=choices)


def _groups(commands: Sequence[Command]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.group for each in commands if each.group))


def _bash(commands: Sequence[Command]) -> str:
    """Completion of commands, flags, values of the flag before the cursor, and files otherwise."""
    first = " ".join(dict.fromkeys(each.name.split()[0] for each in commands))
    groups = _groups(commands)
    lines = ["_neuronserve() {", '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words']
    lines += ['  local command="${COMP_WORDS[1]}" depth=1', "  COMPREPLY=()"]
    lines += [f'  case "$command" in {"|".join(groups)}) command="$command ${{COMP_WORDS[2]}}" depth=2 ;; esac']
    lines += ["  if (( COMP_CWORD <= depth )); then", '    case "$COMP_CWORD ${COMP_WORDS[1]}" in']
    for group in groups:
        lines += [f'      "2 {group}") words="{" ".join(each.last for each in commands if each.group == group)}" ;;']
    lines += [f'      *) words="{first}" ;;', "    esac"]
    lines += ['    COMPREPLY=($(compgen -W "$words" -- "$cur"))', "    return", "  fi", '  case "$command $prev" in']
    for each in commands:
        for flag in each.flags:
            if flag.has_value and (flag.choices or flag.is_number):
                patterns = "|".join(f'"{each.name} {name}"' for name in flag.names)
                done = f'COMPREPLY=($(compgen -W "{" ".join(flag.choices)}" -- "$cur"))' if flag.choices else ":"
                lines.append(f"    {patterns}) {done}; return ;;")
    lines += ["  esac", "  [[ $cur == -* ]] || { compopt -o default; return; }", '  case "$command" in']
    for each in commands:
        lines.append(f'    "{each.name}") words="{" ".join(name for flag in each.flags for name in flag.names)}" ;;')
    lines += ["    *) words= ;;", "  esac", '  COMPREPLY=($(compgen -W "$words" -- "$cur"))', "}"]
    return "\n".join([*lines, "complete -F _neuronserve neuronserve"]) + "\n"


def _zsh(commands: Sequence[Command]) -> str:
    """Completion by zsh's own `_arguments`, with a description of each flag."""
    lines = ["#compdef neuronserve", "_neuronserve() {", "  local -a commands", "  if (( CURRENT == 2 )); then"]
    firsts = {each.name.split()[0]: "measure" if each.group else each.what for each in commands}
    lines += [f"    commands=({_described(firsts)})", "    _describe command commands", "    return", "  fi"]
    for group in _groups(commands):
        inner = {each.last: each.what for each in commands if each.group == group}
        lines += [f"  if (( CURRENT == 3 )) && [[ $words[2] == {group} ]]; then", f"    commands=({_described(inner)})"]
        lines += ["    _describe what commands", "    return", "  fi"]
    lines += ['  local command="$words[2]"', "  shift words; (( CURRENT-- ))"]
    lines += [f'  case "$command" in {"|".join(_groups(commands))}) command="$command $words[2]"']
    lines += ["    shift words; (( CURRENT-- )) ;;", "  esac", '  case "$command" in']
    for each in commands:
        specs = " ".join(_zsh_flag(flag, name) for flag in each.flags for name in flag.names)
        lines.append(f"    {shlex.quote(each.name)}) _arguments {specs} '*:file:_files' ;;")
    return "\n".join([*lines, "  esac", "}", 'if [[ "$funcstack[1]" == _neuronserve ]]; then _neuronserve "$@"']) + (
        "\nelse compdef _neuronserve neuronserve; fi\n"
    )


def _described(words: Mapping[str, str]) -> str:
    return " ".join(shlex.quote(f"{word}:{what}") for word, what in words.items())


def _zsh_flag(flag: Flag, name: str) -> str:
    what = flag.what.translate(str.maketrans("[]:\\", "();/"))
    value = ""
    if flag.has_value:
        value = (
            f":value:({' '.join(flag.choices)})" if flag.choices else ":number:" if flag.is_number else ":value:_files"
        )
    return shlex.quote(f"*{name}[{what}]{value}")


def _fish(commands: Sequence[Command]) -> str:
    """One line for each word, with the description that fish shows beside it."""
    lines = ["complete -c neuronserve -f"]
    for word, what in {each.name.split()[0]: "measure" if each.group else each.what for each in commands}.items():
        lines.append(f"complete -c neuronserve -n __fish_use_subcommand -a {word} -d {_fish_text(what)}")
    for each in commands:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in each.name.split())
        if not each.group:  # its word may be one of a group too
            seen += f"; and not __fish_seen_subcommand_from {' '.join(_groups(commands))}"
        if each.group:
            lasts = " ".join(other.last for other in commands if other.group == each.group)
            before = f"__fish_seen_subcommand_from {each.group}; and not __fish_seen_subcommand_from {lasts}"
            lines.append(f"complete -c neuronserve -n '{before}' -a {each.last} -d {_fish_text(each.what)}")
        lines += [f"complete -c neuronserve -n '{seen}' {_fish_flag(flag)}" for flag in each.flags]
        lines.append(f"complete -c neuronserve -n '{seen}' -F")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: Flag) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    value = ""
    if flag.has_value:
        value = f" -x -a '{' '.join(flag.choices)}'" if flag.choices else " -x" if flag.is_number else " -r -F"
    return f"{names}{value} -d {_fish_text(flag.what)}"


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: Mapping[str, Callable[[Sequence[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
