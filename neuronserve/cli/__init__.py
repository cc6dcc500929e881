"""The `neuronserve` command: a table of subcommands. Each imports its packages when it is called."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from neuronserve.cli import client_tests, commands, launch, pipeline, route
from neuronserve.cli.call import Call, MakeAccount, Parser
from neuronserve.cli.ending import INTERRUPTED, has_lost_its_reader, leave
from neuronserve.server import __version__
from neuronserve.server.errors import StartError

if TYPE_CHECKING:
    from neuronserve.server.config import EngineConfig
    from neuronserve.server.link.handle import EngineEnd, EngineMain
    from neuronserve.server.link.stage_ends import StageEnd
    from neuronserve.server.placement.shared_cores import Account


def engine_main(config: EngineConfig, end: EngineEnd | StageEnd) -> int:
    """Run an engine in this process; no other process imports the compiler."""
    from neuronserve.server.engine.process import run_engine
    from neuronserve.server.engine.serving import load_served
    from neuronserve.server.kernels.isa.target import use_target

    use_target(config.isa)
    return run_engine(load_served, config, end)


def account_main(config: EngineConfig) -> Account:
    """Return the memory that an engine would take."""
    from neuronserve.cli.account import account_of

    return account_of(config)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    return run(argv, engine_main, account_main)


def run_process(engine: EngineMain = engine_main, account: MakeAccount = account_main) -> int:
    """Run the command of this process. A failure ends the process and its children at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if code := run(None, engine, account):
        leave(code)
    return 0


def run(argv: Sequence[str] | None, engine: EngineMain, account: MakeAccount) -> int:
    """Run the command with other main functions of engines' processes."""
    found, rest = _parser().parse_known_args(argv)
    try:
        siblings = {name: what for name, (_, what) in COMMANDS.items()}
        code = found.run(Call(found.name, found.what, rest, engine, account, siblings)) or 0
        print(end="", flush=True)
        return code
    except StartError as error:
        print(f"neuronserve: error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("neuronserve."):
            raise
        print(f"neuronserve: error: {found.name} needs {error.name}, which is not installed", file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        if error.filename is not None:
            raise
        print("neuronserve: error: the working directory has been removed", file=sys.stderr)
        return 2
    except BrokenPipeError:
        if not has_lost_its_reader():
            raise
        return 0
    except KeyboardInterrupt:
        print("neuronserve: interrupted", file=sys.stderr)
        return INTERRUPTED


Run = Callable[[Call], int | None]
COMMANDS: dict[str, tuple[Run, str]] = {
    "serve": (commands.serve, "serve a model over HTTP"),
    "route": (route.route, "spread requests over servers, and continue streams of those that are lost"),
    "pick": (route.pick, "choose servers for the requests of a Kubernetes gateway, as route does"),
    "run-batch": (commands.run_batch, "answer a file of requests, without HTTP"),
    "bench latency": (commands.bench_latency, "measure prefill and decode of a model in this process, without HTTP"),
    "bench throughput": (commands.bench_throughput, "measure many sequences at once in this process, without HTTP"),
    "bench accuracy": (commands.bench_accuracy, "compare logits and perplexity of each weight format with float32"),
    "bench serve": (
        commands.bench_serve,
        "load test an OpenAI-compatible endpoint over HTTP (python -m neuronserve.loadtests)",
    ),
    "plan": (commands.plan, "find the instances that meet a workload's limits, and their cost"),
    "simulate": (commands.simulate, "serve a workload on modelled instances in virtual time"),
    "compile": (commands.compile_ahead, "quantize and pack a model, for a faster start"),
    "models": (commands.models, "list supported models, or check one checkpoint and find where it fits"),
    "embed": (commands.embed, "print embeddings of texts, or scores of their classes"),
    "calibrate": (
        commands.calibrate,
        "fit the cost model to published measurements, or check the stored fit",
    ),
    "validate": (commands.validate, "hold predictions against published measurements: errors, bands, what is unknown"),
    "observe": (commands.observe, "fit the cost model to your own endpoint, for plan --calibration"),
    "chat": (commands.chat, "talk to a running server, or to any endpoint with OpenAI's API"),
    "launch": (launch.launch, "start a coding agent (claude, codex) on a running server"),
    "ls": (commands.ls, "list the emulated devices and their users, as neuron-ls does"),
    "top": (commands.top, "watch a running server: cores, device memory, requests, tokens"),
    "monitor": (commands.monitor, "report on a running server as neuron-monitor does: JSON lines"),
    "record": (client_tests.record, "record the answers of an OpenAI endpoint as a cassette"),
    "replay": (client_tests.replay, "answer from a cassette, without a model"),
    "survive": (
        client_tests.survive,
        "run a client's command through each fault, and list the faults that it did not survive",
    ),
    "stage": (pipeline.stage, "compute a pipeline stage for a server on another host"),
    "doctor": (commands.doctor, "check this host: expected speed, problems, and how to mend them"),
    "completion": (commands.completion, "print a completion script for bash, zsh or fish"),
}


def _parser() -> Parser:
    """Return a parser of command names; each command parses its own flags."""
    parser = Parser(prog="neuronserve", description="OpenAI-compatible LLM server for emulated Inferentia devices.")
    parser.add_argument("--version", action="version", version=__version__)
    groups = {"": parser.add_subparsers(required=True, metavar="COMMAND")}
    for name, (run_command, what) in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help="measure").add_subparsers(required=True, metavar="WHAT")
        command = groups[group].add_parser(last, help=what, add_help=False, allow_abbrev=False)
        command.set_defaults(run=run_command, name=name, what=what)
    return parser
