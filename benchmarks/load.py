"""Cost of loading a model: `python -m benchmarks.load MODEL --quantization int8`. Reads argv and /proc: Linux only.

Starts the engine process of a server, with the server's own defaults. When it is ready, reports the seconds since its
start and the kernel's account of its memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from neuronserve.cli import engine_main
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.checkpoint.gguf.header import is_gguf
from neuronserve.server.config import EngineConfig
from neuronserve.server.errors import StartError
from neuronserve.server.link.handle import EngineHandle
from neuronserve.server.link.messages import EngineInfo, Failed, Output, Ready
from neuronserve.server.settings.engine import EngineSettings

MIB = 1 << 20
TIMEOUT_S = 1800.0  # for one start; the first may compile kernels


@dataclass(frozen=True, slots=True)
class StartFigures:
    """Figures of one start of the engine process."""

    seconds: float  # from the start of the process until it is ready
    peak_bytes: int  # VmHWM: the peak, shared libraries and mapped files included
    resident_bytes: int  # VmRSS when it is ready
    model_mapped_bytes: int  # resident pages of the model's files
    weights_bytes: int  # packed, on all cores
    kv_bytes: int  # the KV pool; its pages become resident when first written

    @property
    def ratio(self) -> float:
        """Ratio of the peak to packed weights and pool."""
        return self.peak_bytes / (self.weights_bytes + self.kv_bytes)

    @property
    def full_ratio(self) -> float:
        """Upper limit of the ratio after the whole pool is written; pages written during the start count twice."""
        return (self.peak_bytes + self.kv_bytes) / (self.weights_bytes + self.kv_bytes)

    @property
    def weights_ratio(self) -> float:
        """Ratio of the peak to packed weights alone."""
        return self.peak_bytes / self.weights_bytes

    def as_json(self) -> dict[str, float]:
        """Return fields and ratios."""
        ratios = {name: getattr(self, name) for name in ("ratio", "full_ratio", "weights_ratio")}
        return {**asdict(self), **ratios}


def measure(config: EngineConfig, model: Path) -> StartFigures:
    """Start an engine process, wait until it is ready, measure it, and end it. Raises StartError if it cannot start.

    `model` is what was named: a directory, or the GGUF file that the configured directory stands for.
    """
    begin = time.perf_counter()
    process = EngineHandle(config, engine_main)
    try:
        info = _ready(process)
        seconds = time.perf_counter() - begin
        folder = Path(f"/proc/{process.pid}")
        return StartFigures(
            seconds,
            _status_bytes(folder, "VmHWM"),
            _status_bytes(folder, "VmRSS"),
            mapped_bytes(folder, model),
            info.host_memory["weights"],
            info.host_memory["kv"],
        )
    finally:
        process.close()


def _ready(process: EngineHandle) -> EngineInfo:
    decoder, deadline = msgspec.msgpack.Decoder(Output), time.monotonic() + TIMEOUT_S
    while process.is_alive and time.monotonic() < deadline:
        process.frames.wait(0.2)
        for output in map(decoder.decode, process.frames.read()):
            if isinstance(output, Ready):
                return output.info
            if isinstance(output, Failed):
                raise StartError(output.message)
    raise StartError("the engine process ended silently" if not process.is_alive else "the engine did not start")


def _status_bytes(folder: Path, key: str) -> int:
    """Return a figure of /proc/PID/status, which has them in KiB."""
    lines = (folder / "status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{key}:"))


def mapped_bytes(folder: Path, model: Path) -> int:
    """Return the resident bytes of a file, or of those below a directory, by the smaps file of a folder of /proc."""
    root, total, is_inside = str(model.resolve()), 0, False
    for line in (folder / "smaps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if not fields[0].endswith(":"):  # the first line of a mapping: addresses, rights, offset, device, inode, path
            is_inside = len(fields) == 6 and f"{fields[5].rstrip()}/".startswith(f"{root}/")
        elif fields[0] == "Rss:" and is_inside:
            total += int(fields[1]) << 10
    return total


def table(loads: Sequence[StartFigures]) -> Table:
    """Return a table of the runs' medians, with the largest peak."""
    worst = max(loads, key=lambda each: each.peak_bytes)
    rows = [
        ("load, median", f"{statistics.median(each.seconds for each in loads):.2f} s"),
        ("load, fastest to slowest", f"{min(e.seconds for e in loads):.2f} - {max(e.seconds for e in loads):.2f} s"),
        ("peak RSS", f"{worst.peak_bytes / MIB:,.0f} MiB"),
        ("RSS when ready", f"{worst.resident_bytes / MIB:,.0f} MiB"),
        ("mapped files of the model, included", f"{worst.model_mapped_bytes / MIB:,.0f} MiB"),
        ("packed weights", f"{worst.weights_bytes / MIB:,.0f} MiB"),
        ("KV pool", f"{worst.kv_bytes / MIB:,.0f} MiB"),
        ("peak / (weights + pool)", f"{worst.ratio:.3f}"),
        ("the same after writing the whole pool", f"<= {worst.full_ratio:.3f}"),
        ("peak / weights", f"{worst.weights_ratio:.3f}"),
    ]
    shown = Table(title=f"{len(loads)} start(s) of the engine process", box=SIMPLE, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for row in rows:
        shown.add_row(*row)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 0, or that of the failed start."""
    args = _parser().parse_args(argv)
    try:
        settings = EngineSettings(
            model=str(args.model),
            device=args.device,
            quantization=args.quantization,
            tensor_parallel_size=args.tensor_parallel_size,
            cpu_threads=args.threads or "auto",
            num_gpu_blocks_override=args.num_gpu_blocks_override,
        )
        directory = gguf_directory(args.model, settings.gguf_cache) if is_gguf(args.model) else args.model
        loads = [measure(settings.engine_config(directory), args.model) for _ in range(args.runs)]
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    Console().print(table(loads))
    if args.json is not None:
        args.json.write_text(json.dumps([each.as_json() for each in loads], indent=2) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description="Seconds and memory of a start.")
    parser.add_argument("model", type=Path, help="directory of a checkpoint or of a compiled model, or a GGUF file")
    parser.add_argument("--device", default="inf2.xlarge")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--threads", type=int, help="host threads (default: all CPUs of this process)")
    parser.add_argument("--num-gpu-blocks-override", type=int, help="KV blocks (default: the server's choice)")
    parser.add_argument("--runs", type=_positive, default=1, help="starts, one after the other")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run to this file")
    return parser


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
