"""Train the default model: warm-up, constant rate, linear decay (WSD), all measured in tokens, not in time.

A paused process therefore loses nothing, and SIGTERM saves before it ends. If other programs share the CPU, set
OMP_WAIT_POLICY=passive: threads that spin take away the time that the others need. The file `decay-now` in the output
directory starts the decay early. `before_decay.pt` is kept, so that a finished run can be resumed from there with a
larger `--tokens`; or resume `final.pt` itself with `--extend` and lower rates.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file

from tools.default_model.batches import BatchPlan, steps
from tools.default_model.chat import Chat
from tools.default_model.model import Llama, Shape
from tools.default_model.optimizer import Optimizer


@dataclass(slots=True)
class TrainingState:
    """Progress of a run, saved with the weights."""

    step: int = 0
    tokens: int = 0
    decay_from: int = 0  # tokens at which the decay began, 0 before
    seconds: float = 0.0  # of training, without pauses


def rate(progress: TrainingState, warmup_steps: int, decay_tokens: int) -> float:
    """Return the factor of the learning rates."""
    if progress.decay_from:
        return max(0.0, 1 - (progress.tokens - progress.decay_from) / decay_tokens)
    return min(1.0, (progress.step + 1) / warmup_steps)


class TrainingRun:
    """A training run and its checkpoints in `args.out`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        torch.manual_seed(args.seed)
        torch.set_num_threads(args.threads)
        self.model = Llama(Shape())
        self.optimizer = Optimizer(self.model, args.muon_lr, args.adam_lr)
        self.progress = TrainingState()
        self.recent: deque[tuple[float, int]] = deque(maxlen=50)  # (seconds, tokens) of the last steps
        self.is_stop_requested = False
        if args.resume:
            self._load(args.resume)
        elif args.weights:
            self._begin_from(args.weights)
        self.forward = torch.compile(self.model, dynamic=True) if args.compile else self.model

    def train(self) -> None:
        rng = Random(f"{self.args.seed} {self.progress.step}")
        losses: deque[float] = deque(maxlen=50)
        for rectangles in steps(Chat(), rng, BatchPlan(step_tokens=self.args.step_tokens)):
            factor = self._factor()
            if factor <= 0 or self.is_stop_requested:
                break
            start = time.monotonic()
            losses.append(self._step(rectangles, factor))
            self._account(time.monotonic() - start, sum(r.tokens.size for r in rectangles))
            if self.progress.step % 20 == 0:
                self._report(sum(losses) / len(losses), factor)
            if self.progress.step % 100 == 0:
                self._save("latest.pt")
        self._save("latest.pt" if self.is_stop_requested else "final.pt")

    def stop(self, *_: object) -> None:
        """Save and end after the current step (the handler of SIGTERM)."""
        self.is_stop_requested = True

    def _step(self, rectangles: list[Any], factor: float) -> float:
        count = sum(len(r.rows) for r in rectangles)
        total = 0.0
        for r in rectangles:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = self.forward(*(torch.from_numpy(x) for x in (r.tokens, r.rows, r.targets))) / count
            loss.backward()
            total += float(loss.detach())
        self.optimizer.step(factor)
        return total

    def _factor(self) -> float:
        progress, args = self.progress, self.args
        is_decay_requested = (args.out / "decay-now").exists()
        if not progress.decay_from and (is_decay_requested or progress.tokens >= args.tokens - args.decay_tokens):
            self._save("before_decay.pt")
            progress.decay_from = progress.tokens
        return rate(progress, args.warmup_steps, args.decay_tokens)

    def _account(self, seconds: float, tokens: int) -> None:
        """Count a step that is far slower than its neighbours, because it was paused, as one of them."""
        usual = sorted(s for s, _ in self.recent)[len(self.recent) // 2] if self.recent else seconds
        seconds = min(seconds, 4 * usual)
        self.recent.append((seconds, tokens))
        self.progress.seconds += seconds
        self.progress.step += 1
        self.progress.tokens += tokens

    def _report(self, loss: float, factor: float) -> None:
        progress, args = self.progress, self.args
        speed = sum(t for _, t in self.recent) / sum(s for s, _ in self.recent)
        end = progress.decay_from + args.decay_tokens if progress.decay_from else args.tokens
        left = max(0, end - progress.tokens) / speed / 60
        share = progress.tokens / end
        bar = "#" * int(20 * share) + "." * (20 - int(20 * share))
        print(
            f"[{bar}] {share:4.0%} step {progress.step} loss {loss:.4f} rate {factor:.2f} "
            f"{progress.tokens / 1e6:.1f}M tokens {speed:.0f}/s ETA {left:.0f} min",
            flush=True,
        )

    def _save(self, name: str) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        part = self.args.out / f"{name}.part"
        torch.save(state, part)
        part.replace(self.args.out / name)

    def _begin_from(self, path: Path) -> None:
        tensors = {name.removeprefix("model."): tensor.float() for name, tensor in load_file(path).items()}
        self.model.load_state_dict(tensors)

    def _load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = TrainingState(**state["progress"])
        if self.args.extend:
            self.progress.decay_from = 0


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--out", type=Path, required=True, help="directory of checkpoints, outside the repository")
    begin = p.add_mutually_exclusive_group()
    begin.add_argument("--resume", type=Path, help="checkpoint to go on from")
    begin.add_argument(
        "--weights", type=Path, help="exported model.safetensors to begin with; take another --seed than its run had"
    )
    p.add_argument(
        "--extend", action="store_true", help="forget that the resumed run had decayed: raise the rate again"
    )
    p.add_argument("--tokens", type=float, default=60e6, help="length of the run, decay included")
    p.add_argument("--decay-tokens", type=float, default=10e6)
    p.add_argument("--step-tokens", type=int, default=6144)
    p.add_argument("--warmup-steps", type=int, default=60)
    p.add_argument("--muon-lr", type=float, default=0.006)
    p.add_argument("--adam-lr", type=float, default=0.0015)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return p


def main() -> None:
    args = parser().parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "pid").write_text(f"{os.getpid()}\n")
    run = TrainingRun(args)
    signal.signal(signal.SIGTERM, run.stop)
    run.train()


if __name__ == "__main__":
    main()
