"""The command `python -m neuronserve.loadtests [run|sweep|compare|selfcheck|scenarios] ...`; the default is `run`.

Only this file reads argv and OPENAI_API_KEY. Exit codes: 0 measured; 1 nothing measured, or interrupted; 2 wrong usage
or no server; 3 measured but not to be published.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .artifacts import Artifacts
from .errors import LoadTestError, SpecError
from .flags import add_scenario_flags, scenario_tree
from .local_server import neuronserve_command, running
from .result import tool_version
from .scenario import built_in_names, load_scenario
from .selfcheck import self_check
from .session import EXIT_NOTHING, EXIT_OK, EXIT_USAGE, LoadSession, relabelled
from .specs import Scenario
from .sweep import SweepOptions

RESULT_DIR = "loadtest-results"


PROG = "neuronserve bench serve"


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EXIT_USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0] not in COMMANDS and words[0] not in {"-h", "--help", "--version"}):
        words.insert(0, "run")
    arguments = vars(_parser().parse_args(words))
    try:
        return COMMANDS[arguments.pop("command")](arguments)
    except LoadTestError as error:
        print(f"{PROG}: error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run(arguments: dict[str, Any]) -> int:
    with _scenario(arguments) as scenario:
        return _session(arguments, scenario).run(scenario)


_SWEEP_DECIDES = {
    "request_rate": "a sweep searches the rate: --start-rate is the first one",
    "num_prompts": "a sweep sends for --point-duration-s at each rate, and at least --min-prompts",
}


def _sweep(arguments: dict[str, Any]) -> int:
    for name, reason in _SWEEP_DECIDES.items():
        if name in arguments:
            raise SpecError(f"--{name.replace('_', '-')}: {reason}")
    options = SweepOptions(**{key: arguments[key] for key in SweepOptions.__dataclass_fields__ if key in arguments})
    with _scenario(arguments) as scenario:
        return _session(arguments, scenario).sweep(scenario, options)


def _compare(arguments: dict[str, Any]) -> int:
    with _scenario(arguments) as scenario:
        a = relabelled(scenario, label=arguments["label_a"])
        other = {"base_url": arguments["other_base_url"], "model": arguments["other_model"]}
        b = relabelled(scenario, label=arguments["label_b"], **other)
        return _session(arguments, scenario).compare((a, b), arguments["rounds"])


def _selfcheck(arguments: dict[str, Any]) -> int:
    checks, reports = self_check(arguments["seconds"])
    for check in checks:
        print(check.text())
    for report in reports:
        print(report.text())
    return EXIT_OK if all(check.holds for check in checks) else EXIT_NOTHING


def _scenarios(arguments: dict[str, Any]) -> int:
    del arguments
    for name in built_in_names():
        print(f"{name:16} {load_scenario(name, {}).description}")
    return EXIT_OK


COMMANDS: dict[str, Callable[[dict[str, Any]], int]] = {
    "run": _run,
    "sweep": _sweep,
    "compare": _compare,
    "selfcheck": _selfcheck,
    "scenarios": _scenarios,
}


@contextlib.contextmanager
def _scenario(arguments: dict[str, Any]) -> Iterator[Scenario]:
    """Yield the scenario of the flags; with --serve, against a server that runs meanwhile."""
    scenario = load_scenario(arguments["scenario"], scenario_tree(arguments))
    if arguments["serve"] is None:
        yield scenario
        return
    with running(neuronserve_command(arguments["serve"].split())) as url:
        yield relabelled(scenario, base_url=url)


def _session(arguments: dict[str, Any], scenario: Scenario) -> LoadSession:
    stem = scenario.run.label or scenario.name
    artifacts = Artifacts.named(arguments["result_dir"], stem, arguments["json"], arguments["html"])
    return LoadSession(artifacts, os.environ.get("OPENAI_API_KEY"), not arguments["disable_progress"])


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROG,
        description="Measure an OpenAI-compatible endpoint: latency, goodput and cost.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=tool_version())
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    run = _measuring(commands, "run", "one run (the default)")
    parser.epilog = f"Without a command:\n\n{run.format_help()}"
    sweep = _measuring(commands, "sweep", "find the highest rate that meets the limits, and its cost")
    for name, default in ((f.name, f.default) for f in SweepOptions.__dataclass_fields__.values()):
        sweep.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"default: {default}"
        )
    compare = _measuring(commands, "compare", "two endpoints, interleaved, with confidence intervals")
    compare.add_argument("--other-base-url", required=True, help="endpoint B; A is --base-url")
    compare.add_argument("--other-model", help="model name at B (default: as at A)")
    compare.add_argument("--label-a", default="A", help="name of A in the report")
    compare.add_argument("--label-b", default="B", help="name of B in the report")
    compare.add_argument("--rounds", type=int, default=5, help="runs of each side (default: 5)")
    check = commands.add_parser("selfcheck", help="CPU use and lateness of the generator on this host")
    check.add_argument("--seconds", type=float, default=10.0, help="of each of the two runs (default: 10)")
    commands.add_parser("scenarios", help="list the built-in scenarios")
    return parser


def _measuring(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add a measuring command, with flags for its scenario and files, and one for each key of a scenario."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, allow_abbrev=False, description=text)
    _add_measuring_flags(parser)
    return parser


def run_parser() -> argparse.ArgumentParser:
    """Return a parser of the flags of a run."""
    parser = _Parser()
    _add_measuring_flags(parser)
    return parser


def _add_measuring_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", metavar="NAME", help=f"a TOML file, or built in: {', '.join(built_in_names())}")
    parser.add_argument("--serve", metavar="ARGS", help="start `neuronserve serve ARGS` for this, on a free port")
    parser.add_argument("--json", metavar="FILE", help="file of the result (default: in --result-dir)")
    parser.add_argument("--html", metavar="FILE", help="file of the report page (default: beside the result)")
    parser.add_argument("--result-dir", metavar="DIR", default=RESULT_DIR, help=f"default: {RESULT_DIR}")
    parser.add_argument("--disable-progress", action="store_true", help="no live line")
    add_scenario_flags(parser)
