"""Idle time of pipeline stages, measured beside the cost model's: `python -m benchmarks.bubbles MODEL [--stages 2]`.

For 1, 2 and 4 micro-batches: as many streams as micro-batches decode, and the processes of the stages say how long they
computed (CPU seconds of one thread each). The modelled bubble is that of equal streams on --device. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence

import httpx
import psutil

from neuronserve.loadtests.local_server import neuronserve_command, running
from neuronserve.planner.model_names import resolve_decoder
from neuronserve.server.cost.pipeline import PipelineModel
from neuronserve.server.device.catalog import instance
from neuronserve.server.settings.model import DEFAULT_MODEL

MICRO_BATCHES = (1, 2, 4)
MAX_MODEL_LEN, NUM_TOKENS = 2048, 1900  # of each stream: it is still open when the window has passed
WARM_S = 1.0


async def bubble(url: str, num_streams: int, stages: int, window_s: float) -> float:
    """Return the idle share of the stages' time while `num_streams` decode."""
    body = {"prompt": "a", "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:

        async def stream() -> None:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_bytes():
                    pass
            raise SystemExit("a stream has ended before its time: use a larger model or a smaller --window")

        streams = [asyncio.create_task(stream()) for _ in range(num_streams)]
        try:
            await asyncio.wait(streams, timeout=WARM_S, return_when=asyncio.FIRST_EXCEPTION)
            first, begin = _computed_s(), time.monotonic()
            done, _ = await asyncio.wait(streams, timeout=window_s, return_when=asyncio.FIRST_EXCEPTION)
            last, seconds = _computed_s(), time.monotonic() - begin
            for each in done:
                each.result()
        finally:
            for each in streams:
                each.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
    used = sorted((last[pid] - first.get(pid, 0.0) for pid in last), reverse=True)
    return 1 - sum(used[:stages]) / (stages * seconds)


def _computed_s() -> Mapping[int, float]:
    """Return the CPU seconds of the server's processes behind its API, which are the stages and idle helpers."""
    [server] = psutil.Process().children()
    found = {}
    for each in server.children(recursive=True):
        times = each.cpu_times()
        found[each.pid] = times.user + times.system
    return found


def modelled(model: str, device: str, stages: int, micro: int) -> float:
    """Return the bubble of a step of `micro` slots in the cost model."""
    return PipelineModel.of(resolve_decoder(model), instance(device), 1, stages).decode(micro, 1024).bubble


def main(argv: Sequence[str] | None = None) -> None:
    """Print a row for each number of micro-batches."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bubbles", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(DEFAULT_MODEL))
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--device", default="inf2.48xlarge")
    parser.add_argument("--window", type=float, default=4.0, help="seconds of each measurement")
    args = parser.parse_args(argv)
    flags = ["--pipeline-parallel-size", str(args.stages), "--cpu-threads", str(args.stages), "--device", args.device]
    flags += ["--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "8"]
    print("micro-batches | measured bubble | modelled bubble")
    with running(neuronserve_command([args.model, *flags])) as url:
        for micro in MICRO_BATCHES:
            measured = asyncio.run(bubble(url, micro, args.stages, args.window))
            print(f"{micro} | {measured:.3f} | {modelled(args.model, args.device, args.stages, micro):.3f}", flush=True)


if __name__ == "__main__":
    main()
