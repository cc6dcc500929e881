"""Cost of constrained decoding: the same batch with and without a JSON schema, in turns, on one engine.

The schema's output cannot end before its last token, so that both sides generate the same number. Besides rates it
reports the processor time of a step, which other work on the machine disturbs less. usage: python -m
benchmarks.structured [MODEL] [--batch-size 8] [--rounds 9]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.ratios import Ratio, ratio_of
from neuronserve.server.bench.drive import EngineDriver
from neuronserve.server.bench.options import BatchShape, Drawing
from neuronserve.server.engine.load.loading import load_engine
from neuronserve.server.errors import StartError
from neuronserve.server.settings.engine import EngineSettings
from neuronserve.server.settings.model import DEFAULT_MODEL
from neuronserve.server.text.grammar import grammar_text

INPUT_LEN, OUTPUT_LEN = 32, 128  # tokens
DRAWN = Drawing(temperature=1.0)
ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mood": {"enum": ["calm", "glad", None]},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 3},
    },
    "required": ["name", "age", "mood", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": OUTPUT_LEN}  # an item has several tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """Constrained divided by unconstrained, round by round: above 1 is faster for rates, dearer for processor time."""

    decode_tokens_per_s: Ratio
    processor_s: Ratio  # of the whole process, for one run


def measure(driver: EngineDriver, batch_size: int, rounds: int, on_round: Callable[[int], None]) -> Cost:
    """Run both sides in each round, in rotating order, after a round that does not count."""
    free = BatchShape(batch_size, INPUT_LEN, OUTPUT_LEN, DRAWN)
    bound = replace(free, drawing=replace(DRAWN, grammar=grammar_text("json", SCHEMA)))
    rates: dict[BatchShape, list[float]] = {free: [], bound: []}
    seconds: dict[BatchShape, list[float]] = {free: [], bound: []}
    for number in range(-1, rounds):
        on_round(number)
        for shape in (free, bound) if number % 2 else (bound, free):
            begin = time.process_time()
            steps = [step for step in driver.run(shape) if not step.num_prefill_tokens]
            if number >= 0:
                seconds[shape].append(time.process_time() - begin)
                rates[shape].append(sum(s.num_decode_tokens for s in steps) / sum(s.wall_s for s in steps))
    return Cost(ratio_of(rates[bound], rates[free]), ratio_of(seconds[bound], seconds[free]))


def load(model: Path, batch_size: int) -> EngineDriver:
    """Return the engine of `model`. Raises StartError."""
    settings = EngineSettings(
        model=str(model), max_model_len=INPUT_LEN + OUTPUT_LEN, max_num_seqs=batch_size, enable_prefix_caching=False
    )
    return EngineDriver(load_engine(settings.engine_config(model), lambda line: print(line, file=sys.stderr)))


def line_of(name: str, ratio: Ratio) -> str:
    interval = f"{ratio.low:.3f} to {ratio.high:.3f} ({ratio.coverage:.0%})"
    return f"{name:24} {ratio.ours:12.4g} {ratio.theirs:12.4g} {ratio.median:8.3f}   {interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    try:
        driver = load(args.model, args.batch_size)
    except StartError as error:
        sys.exit(str(error))
    cost = measure(driver, args.batch_size, args.rounds, lambda number: print(f"round {number + 1}", file=sys.stderr))
    print(f"{'':24} {'constrained':>12} {'free':>12} {'ratio':>8}   interval of the median")
    print(line_of("decode tokens/s", cost.decode_tokens_per_s))
    print(line_of("processor s, a run", cost.processor_s))


if __name__ == "__main__":
    main()
