"""The `neuronserve` command: one small function for each subcommand. Imports as late as it can, for a fast start."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from server import __version__
from server.config import EngineConfig
from server.device.catalog import use_catalog
from server.errors import StartError
from server.link.handle import Addresses, EngineHandle, EngineMain
from server.settings.bench import AccuracySettings, LatencySettings, ThroughputSettings
from server.settings.catalog import CatalogSettings
from server.settings.compile import CompileSettings
from server.settings.model import ModelSettings
from server.settings.monitor import LsSettings, MonitorSettings, TopSettings
from server.settings.planner import PlanSettings, SimulateSettings
from server.settings.serve import ServeSettings
from server.settings.sources import Settings, add_arguments, load_settings

if TYPE_CHECKING:
    from argparse import _SubParsersAction

Run = Callable[[dict[str, Any]], None]  # a subcommand, given its parsed arguments


class _Parser(argparse.ArgumentParser):
    """Complains in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def engine_main(config: EngineConfig, addresses: Addresses) -> int:
    """What an engine's process runs; only that process imports the compiler."""
    from server.engine.load.loading import load_engine
    from server.engine.process import run_engine

    return run_engine(load_engine, config, addresses)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the command; returns the exit code."""
    return run(argv, engine_main)


def run(argv: Sequence[str] | None, engine: EngineMain) -> int:
    """`main` with what the engine's process runs as an argument."""
    parser = _parser(engine)
    known, rest = parser.parse_known_args(argv)
    arguments = vars(known)
    command: Run | None = arguments.pop("run")
    if command is None:  # the load tests are a program of their own, with their own flags
        from loadtests.cli import main as load_test

        return load_test(rest)
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        command(arguments)
    except StartError as error:
        print(f"neuronserve: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def serve(settings: ServeSettings, engine: EngineMain) -> None:
    """Run the server. The engines' processes start before the heavy imports of the API, and load meanwhile."""
    _log_to_stderr(settings.log_level)
    settings.require_price()
    model_path = _model_path(settings)
    engines = [EngineHandle(each, engine, settings.engine_mode) for each in settings.engine_configs(model_path)]
    try:
        from server.api import server

        listener = server.bind(settings.host, settings.port)
        server.serve(settings.api_config(model_path), engines, listener)
    finally:
        for process in engines:
            process.close()


def bench_latency(settings: LatencySettings) -> None:
    """Measure prefill and decode in this process, and print a table."""
    from server.bench.latency_report import run_latency

    run_latency(settings.engine_config(_model_path(settings)), settings.workloads, settings.options)


def bench_throughput(settings: ThroughputSettings) -> None:
    """Measure many sequences at once in this process, and print a table."""
    from server.bench.throughput_report import run_throughput

    run_throughput(settings.engine_config(_model_path(settings)), settings.workloads, settings.options)


def bench_accuracy(settings: AccuracySettings) -> None:
    """Measure what each format of the weights does to the model's answers."""
    from server.bench.accuracy_report import run_accuracy

    run_accuracy(settings.engine_config(_model_path(settings)), settings.options)


def compile_ahead(settings: CompileSettings) -> None:
    """Quantize and pack a model into a directory that `serve` starts from."""
    from server.engine.load.artifact_writer import compile_model

    compile_model(settings.compile_config(_model_path(settings)), lambda line: print(line, file=sys.stderr))


def calibrate(arguments: dict[str, Any]) -> None:
    """Fit the cost model to published rows, or hold the stored fit against any; print tables, write JSON if asked."""
    from rich.console import Console

    from server.planner.calibrate.calibrate import run_calibrate, run_check
    from server.planner.calibrate.table import render
    from server.planner.command import write_json

    data, check, json_file = (arguments[name] for name in ("data", "check", "json"))
    report = run_check(Path(check)) if check else run_calibrate(Path(data))
    Console().print(render(report))
    write_json(json_file, report.as_json())


def plan(settings: PlanSettings) -> None:
    """Which instance, degree, dtype and batch meet the limits, and at what cost."""
    from server.planner.command import run_plan
    from server.planner.plan.demand import with_trace
    from server.planner.plan.options import PlanOptions
    from server.workload.traces import read_trace

    options = PlanOptions(
        model=settings.model,
        input_tokens=settings.input_len,
        output_tokens=settings.output_len,
        request_rate=1.0 if settings.request_rate is None else settings.request_rate,
        ttft_s=None if settings.ttft_ms is None else settings.ttft_ms / 1e3,
        tpot_s=None if settings.tpot_ms is None else settings.tpot_ms / 1e3,
        devices=settings.device,
        tensor_parallel_sizes=settings.tensor_parallel_size,
        pipeline_parallel_sizes=settings.pipeline_parallel_size,
        device_memory_utilization=settings.device_memory_utilization,
        batching=settings.batching,
        price_basis=settings.price_basis,
        chip_watts=settings.chip_watts,
    )
    trace = read_trace(Path(settings.trace)) if settings.trace else None
    if trace is not None:
        options = with_trace(options, trace, settings.request_rate)
    run_plan(options, settings.json_file, settings.picture_path, settings.check, trace)


def simulate(settings: SimulateSettings) -> None:
    """Serve a workload on modelled instances in virtual time."""
    from server.planner.command import run_simulate
    from server.planner.model_names import resolve_shape
    from server.planner.simulate.options import SimulationOptions, Slo
    from server.workload.traces import read_trace
    from server.workload.workload import LengthRange, SyntheticWorkload

    synthetic = SyntheticWorkload(
        settings.num_prompts,
        settings.request_rate,
        LengthRange.parse(settings.random_input_len, "random_input_len"),
        LengthRange.parse(settings.random_output_len, "random_output_len"),
        arrivals="poisson" if settings.burstiness == 1 else "gamma",
        burstiness=settings.burstiness,
        seed=settings.seed,
    )
    options = SimulationOptions(
        model=resolve_shape(settings.model),
        instance=settings.device,
        workload=read_trace(Path(settings.trace)) if settings.trace else synthetic.generate(),
        tensor_parallel_size=settings.tensor_parallel_size,
        data_parallel_size=settings.data_parallel_size,
        replicas=settings.replicas,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        batching=settings.batching,
        decode_buckets=None if settings.batching == "neuron" else (),
        max_concurrency=settings.max_concurrency,
        device_memory_utilization=settings.device_memory_utilization,
        quantization=settings.quantization,
        routing=settings.routing,
        slo=Slo(settings.ttft_ms, settings.tpot_ms, settings.e2el_ms),
        price_basis=settings.price_basis,
    )
    run_simulate(options, settings.json_file)


def ls(settings: LsSettings) -> None:
    """The devices of the emulated instance, and who uses them."""
    from server.monitor.neuron_ls import run_ls

    run_ls(settings.url, settings.device, settings.json_output)


def top(settings: TopSettings) -> None:
    """A live view of a running server."""
    from server.monitor.neuron_top import run_top

    run_top(settings.url, settings.interval, settings.once)


def monitor(settings: MonitorSettings) -> None:
    """JSON lines about a running server."""
    from server.monitor.neuron_monitor import run_monitor

    run_monitor(settings.url, settings.interval, settings.once)


def _settle(kind: type[Settings], arguments: dict[str, Any]) -> Settings:
    """The settings of a command, and the catalogue that they name in force."""
    settings = load_settings(kind, arguments)
    if isinstance(settings, CatalogSettings):
        use_catalog(settings.catalog_config)
    return settings


def _model_path(settings: ModelSettings) -> Path:
    """The local directory of the model; a hub id is downloaded first."""
    if os.path.isdir(settings.model) and settings.revision is None:
        return Path(settings.model)
    from server.checkpoint.hub import resolve_model

    return resolve_model(settings.model, settings.revision)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _parser(engine: EngineMain) -> _Parser:
    parser = _Parser(prog="neuronserve", description="OpenAI-compatible LLM server for emulated Inferentia devices.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    _add(commands, "serve", ServeSettings, lambda settings: serve(settings, engine), "serve a model over HTTP")
    _add_benches(commands)
    _add(commands, "plan", PlanSettings, plan, "find the instances that meet a workload's limits, and their cost")
    _add(commands, "simulate", SimulateSettings, simulate, "serve a workload on modelled instances in virtual time")
    _add(commands, "compile", CompileSettings, compile_ahead, "quantize and pack a model, for a faster start")
    _add_calibrate(commands)
    _add(commands, "ls", LsSettings, ls, "list the emulated devices and who uses them, as neuron-ls does")
    _add(commands, "top", TopSettings, top, "watch a running server: cores, device memory, requests, tokens")
    _add(commands, "monitor", MonitorSettings, monitor, "report on a running server as neuron-monitor does: JSON lines")
    _command(commands, "version", "print the version").set_defaults(run=lambda _: print(__version__))
    return parser


def _add_benches(commands: _SubParsersAction[Any]) -> None:
    benches = _command(commands, "bench", "measure").add_subparsers(required=True, metavar="WHAT", parser_class=_Parser)
    what = "prefill and decode of a model in this process, without HTTP"
    _add(benches, "latency", LatencySettings, bench_latency, what)
    _add(
        benches,
        "throughput",
        ThroughputSettings,
        bench_throughput,
        "many sequences at once in this process, without HTTP",
    )
    what = "logits error and perplexity of each weight format against float32"
    _add(benches, "accuracy", AccuracySettings, bench_accuracy, what)
    what = "load test an OpenAI-compatible endpoint over HTTP (python -m loadtests)"
    benches.add_parser("serve", help=what, add_help=False).set_defaults(run=None)


def _add(
    commands: _SubParsersAction[Any], name: str, kind: type[Settings], run: Callable[[Settings], None], what: str
) -> None:
    """A subcommand with settings of a `kind`."""
    parser = _command(commands, name, what)
    add_arguments(parser, kind)
    parser.set_defaults(run=lambda arguments: run(_settle(kind, arguments)))


def _add_calibrate(commands: _SubParsersAction[Any]) -> None:
    what = "fit the cost model to published measurements, or check the stored fit against some"
    parser = commands.add_parser("calibrate", help=what, allow_abbrev=False, description=f"{what.capitalize()}.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", metavar="CSV", help="rows to fit")
    source.add_argument("--check", metavar="CSV", help="rows to hold the stored calibration against; fits nothing")
    parser.add_argument("--json", metavar="FILE", help="write the report to this file")
    parser.set_defaults(run=calibrate)


def _command(commands: _SubParsersAction[Any], name: str, what: str) -> _Parser:
    """A subcommand; its settings can also come from the environment and a file."""
    where = "Each setting can also come from NEURONSERVE_<NAME> or the --config file."
    description = f"{what[0].upper()}{what[1:]}. {where}"
    parser: _Parser = commands.add_parser(name, help=what, allow_abbrev=False, description=description)
    return parser
