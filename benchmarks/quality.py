"""Quality and speed of weight formats, here and in llama.cpp: `python -m benchmarks.quality FILE.gguf ... --text TEXT`.

Every contender has the same weights: those of the file in float32, made by llama-quantize, which also makes llama.cpp's
formats of them. The reference is llama.cpp in float32: llama-perplexity writes the tokens of the text and the
log-probabilities of each (--kl-divergence-base). KL divergence, top-1 and perplexity cover the positions that it
scores. Speeds are medians of rounds in which contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.interleave import Interleaved, Limits
from benchmarks.llama_cpp import LlamaBench, program_in, run
from benchmarks.peers import OURS, Installed, ours
from benchmarks.perplexity import FINAL, PIECE, TIMEOUT_S
from benchmarks.quality_rows import LLAMA_CPP, Row
from benchmarks.records import BenchmarkError, Case, Contender, Figures
from benchmarks.reference import Reference, Score
from neuronserve.loadtests.result import cpu_model, num_cpus, tool_version
from neuronserve.server.checkpoint.gguf.directory import gguf_directory
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.text.tokenizer import load_tokenizer

OUR_FORMATS = ("float32", "bfloat16", "int8", "int8-groups", "fp8", "int4", "mxfp4")
THEIR_FORMATS = ("Q8_0", "Q4_0")
_FOUND = {
    "perplexity": re.compile(r"Mean PPL\(Q\) *: *([\d.]+)"),
    "kl": re.compile(r"Mean +KLD: *(-?[\d.]+)"),
    "top1": re.compile(r"Same top p: *([\d.]+)"),
}


class ModelQuality:
    """The rows of one GGUF file."""

    def __init__(self, args: argparse.Namespace, file: Path, console: Console) -> None:
        self._args, self._name, self._console = args, file.stem, console
        self._plain = self._made(file, "f32", "--allow-requantize")

    def rows(self) -> list[Row]:
        """Return the quality of each format, with its speed if rounds are requested."""
        rows = list(self._quality())
        return self._with_speeds(rows) if self._args.repetitions else rows

    def _made(self, source: Path, kind: str, *flags: str) -> Path:
        """Return the file in the work directory that llama-quantize makes of `source`, made if it is not there yet."""
        path: Path = self._args.work / f"{self._name}-{kind}.gguf"
        if not path.exists():
            self._console.print(f"making {path.name}")
            program, partial = program_in(self._args.llama_cpp, "llama-quantize"), path.with_suffix(".part")
            run(program, *flags, source, partial, kind.upper(), self._args.threads, timeout_s=TIMEOUT_S)
            partial.rename(path)
        return path

    def _quality(self) -> Iterator[Row]:
        with tempfile.TemporaryDirectory(dir=self._args.work) as scratch:
            text, base = Path(scratch, "text"), Path(scratch, "base")
            text.write_bytes(b"\n".join(each.read_bytes() for each in self._args.text))
            whole = (self._plain, "-f", text, "--chunks", self._args.chunks, "--kl-divergence-base", base)
            match = FINAL.search(self._perplexity(*whole))
            if match is None:
                raise BenchmarkError("llama-perplexity printed no estimate")
            yield Row(self._name, LLAMA_CPP, "F32", 0.0, 1.0, float(match[1]), self._plain.name)
            for kind in self._args.llama_formats:
                file = self._made(self._plain, kind.lower())
                found = self._perplexity(file, "--kl-divergence-base", base, "--kl-divergence")
                yield Row(self._name, LLAMA_CPP, kind, file=file.name, **asdict(parse_score(found)))
            reference = Reference(base)
            for weights in self._args.formats:
                yield Row(self._name, OURS, weights, **asdict(self._score(reference, weights)))

    def _perplexity(self, file: Path, *flags: object) -> str:
        self._console.print(f"llama-perplexity {file.name}")
        program = program_in(self._args.llama_cpp, "llama-perplexity")
        done = run(program, "-m", file, "-c", PIECE, "-t", self._args.threads, *flags, timeout_s=TIMEOUT_S)
        return done.stdout + done.stderr

    def _score(self, reference: Reference, weights: str) -> Score:
        """Return the score of this engine with weights in a format."""
        self._console.print(f"{OURS} {weights}")
        settings = EngineSettings(
            model=str(self._plain),
            dtype="float32" if weights == "float32" else "bfloat16",
            quantization="none" if weights in ("float32", "bfloat16") else weights,
            cpu_threads=self._args.threads,
            max_model_len=PIECE,
            max_num_seqs=1,
            max_num_batched_tokens=PIECE,
            enable_prefix_caching=False,
            allow_unsupported_types=True,
        )
        directory = gguf_directory(self._plain, settings.gguf_cache)
        engine = load_engine(settings.engine_config(directory), lambda _: None)
        try:
            return reference.score(engine.runner.logits, load_tokenizer(directory).encode(""))
        finally:
            engine.runner.close()

    def _with_speeds(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with medians of their speeds. The float32 references are not timed."""
        limits = Limits(self._args.repetitions)
        with ExitStack() as stack:
            contenders = [self._contender(row) for row in rows if row.weights not in ("F32", "float32")]
            for contender in contenders:
                stack.callback(contender.stop)
                contender.start()
                contender.pause()
            turns = Interleaved(contenders, limits, self._console.print)
            prefill, decode = turns.measure(Case("prefill")).rounds, turns.measure(Case("decode")).rounds
        return [
            replace(
                row,
                prefill_tokens_per_s=median(prefill.get(row.name, []), "prefill_tokens_per_s"),
                decode_tokens_per_s=median(decode.get(row.name, []), "decode_tokens_per_s"),
            )
            for row in rows
        ]

    def _contender(self, row: Row) -> Contender:
        if row.file:
            program = program_in(self._args.llama_cpp, "llama-bench")
            return LlamaBench(program, self._args.work / row.file, self._args.threads, row.name)
        quantization = "none" if row.weights == "bfloat16" else row.weights
        directory = gguf_directory(self._plain, EngineSettings().gguf_cache)
        contender = ours("decode", Installed(directory, quantization, self._args.threads))
        contender.name = row.name
        return contender


def median(rounds: Sequence[Figures], metric: str) -> float:
    """Return the median of a metric over the rounds, 0 without any."""
    return statistics.median(figures[metric] for figures in rounds) if rounds else 0.0


def parse_score(output: str) -> Score:
    """Parse llama-perplexity's comparison with the reference. Raises BenchmarkError."""
    found = {name: pattern.search(output) for name, pattern in _FOUND.items()}
    values = {name: float(match[1]) for name, match in found.items() if match is not None}
    if len(values) < len(found):
        raise BenchmarkError("llama-perplexity printed no KL divergence: the text is too short")
    return Score(values["kl"], values["top1"] / 100, values["perplexity"])


def table(rows: Sequence[Row]) -> Table:
    """Return a table with one line for each format of each model, the best first."""
    shown = Table(box=SIMPLE, title="Against float32 weights; speeds in tokens/s", title_justify="left")
    for heading in ("model", "engine", "weights", "KL", "top-1", "perplexity", "prefill 512", "decode"):
        shown.add_column(heading, justify="left" if heading in ("model", "engine", "weights") else "right")
    models = list(dict.fromkeys(row.model for row in rows))
    for row in sorted(rows, key=lambda row: (models.index(row.model), row.kl)):
        speeds = [f"{each:,.0f}" if each else "-" for each in (row.prefill_tokens_per_s, row.decode_tokens_per_s)]
        quality = f"{row.kl:.4f}", f"{row.top1:.1%}", f"{row.perplexity:.3f}"
        shown.add_row(row.model, row.engine, row.weights, *quality, *speeds)
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, and write the rows to --json for `benchmarks.compare --quality`."""
    args = _parser().parse_args(argv)
    args.work.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True, highlight=False)
    try:
        rows = [row for file in args.models for row in ModelQuality(args, file, console).rows()]
    except BenchmarkError as error:
        console.print(str(error), markup=False)
        return 1
    report.console().print(table(rows))
    if args.json is not None:
        about: dict[str, object] = {
            "tool": f"neuronserve benchmarks {tool_version()}",
            "host": f"{num_cpus()} cores, {cpu_model()}",
        }
        about |= {"text": [file.name for file in args.text], "pieces of 512 tokens": args.chunks}
        args.json.write_text(json.dumps({**about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=(__doc__ or "").split("\n")[0])
    variable = "NEURONSERVE_BENCH_LLAMA_CPP"
    given = os.environ.get(variable)
    parser.add_argument("models", type=Path, nargs="+", help="GGUF files of any format")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="UTF-8 texts, joined")
    parser.add_argument("--work", type=Path, required=True, help="folder for the generated files, which are kept")
    parser.add_argument(
        "--llama-cpp",
        type=Path,
        default=given or None,
        required=not given,
        help=f"build folder of llama.cpp, or its programs (or {variable})",
    )
    parser.add_argument("--chunks", type=int, default=8, help="pieces of 512 tokens")
    parser.add_argument("--formats", nargs="+", default=OUR_FORMATS, choices=OUR_FORMATS, help="formats of this engine")
    parser.add_argument(
        "--llama-formats", nargs="+", default=THEIR_FORMATS, metavar="TYPE", help="formats of llama.cpp"
    )
    parser.add_argument("--repetitions", type=int, default=5, help="rounds of speed measurements; 0 skips them")
    parser.add_argument("--threads", type=int, default=num_cpus(), help="threads of every contender")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
