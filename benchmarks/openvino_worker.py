"""OpenVINO GenAI in a process of its own. Another Python runs it, so it imports nothing of this project.

The interface is that of `benchmarks/worker.py`: one JSON line in, one line that begins with RESULT out. usage:
openvino_worker.py MODEL_DIR THREADS PREFILL_TOKENS DECODE_TOKENS SEQUENCES INPUT_LEN OUTPUT_LEN
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

FIRST_ID, LAST_ID = 300, 31_999  # ordinary tokens of a vocabulary of 32,000
BATCHED_TOKENS = 512  # in a step of continuous batching; 2048 was slower on the hosts tried
CACHE_GB = 3


class Bench:
    """Pipelines, made when first needed: each holds the weights once."""

    def __init__(self, directory: str, threads: int, sizes: list[int]) -> None:
        self._directory = directory
        self._properties = {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": True}
        self._prefill, self._decode, self._sequences, self._input_len, self._output_len = sizes
        self._pipelines: dict[str, Any] = {}
        self._next_id = 0

    def measure(self, kind: str, seed: int) -> dict[str, float]:
        words = random.Random(seed)
        if kind == "prefill":
            self._generate(self._ids(words, self._prefill), 1)  # llama-bench warms up in each call too
            begin = time.perf_counter()
            self._generate(self._ids(words, self._prefill), 1)
            return {"prefill_tokens_per_s": self._prefill / (time.perf_counter() - begin)}
        if kind == "decode":
            result = self._generate(self._ids(words, 1), self._decode + 1)
            return {"decode_tokens_per_s": 1000.0 / result.perf_metrics.get_tpot().mean}
        return self._offline(words)

    def _generate(self, ids: Any, new_tokens: int) -> Any:
        if "single" not in self._pipelines:
            self._pipelines["single"] = genai.LLMPipeline(self._directory, "CPU", **self._properties)
        mask = openvino.Tensor(np.ones(ids.shape, np.int64))
        return self._pipelines["single"].generate(genai.TokenizedInputs(ids, mask), self._greedy(new_tokens))

    def _offline(self, words: random.Random) -> dict[str, float]:
        pipeline, handles = self._batching(), []  # a request without a handle is dropped
        for _ in range(self._sequences):
            self._next_id += 1
            ids, config = self._ids(words, self._input_len), self._greedy(self._output_len)
            handles.append(pipeline.add_request(self._next_id, ids, config))
        begin = time.perf_counter()
        while pipeline.has_non_finished_requests():
            pipeline.step()
        elapsed = time.perf_counter() - begin
        done = sum(len(handle.read_all()[0].generated_ids) for handle in handles)
        if done != self._sequences * self._output_len:
            raise RuntimeError(f"{done} tokens were generated, not {self._sequences * self._output_len}")
        return {"output_tokens_per_s": done / elapsed}

    def _batching(self) -> Any:
        if "batching" not in self._pipelines:
            config = genai.SchedulerConfig()
            config.cache_size, config.max_num_seqs = CACHE_GB, 2 * self._sequences
            config.max_num_batched_tokens, config.dynamic_split_fuse = BATCHED_TOKENS, True
            config.enable_prefix_caching = False
            self._pipelines["batching"] = genai.ContinuousBatchingPipeline(
                self._directory, config, "CPU", self._properties
            )
        return self._pipelines["batching"]

    @staticmethod
    def _ids(words: random.Random, count: int) -> Any:
        ids = [[words.randint(FIRST_ID, LAST_ID) for _ in range(count)]]
        return openvino.Tensor(np.array(ids, np.int64))

    @staticmethod
    def _greedy(new_tokens: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        return config


def write_reply(reply: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(reply), flush=True)


def main() -> None:
    directory, *numbers = sys.argv[1:]
    threads, *sizes = map(int, numbers)
    bench = Bench(directory, threads, sizes)
    write_reply(
        {"version": openvino.__version__, "threads": threads, "precision": "weights as exported, the host's own hint"}
    )
    for line in sys.stdin:
        request = json.loads(line)
        try:
            write_reply(bench.measure(request["kind"], request["seed"]))
        except RuntimeError as error:
            write_reply({"error": str(error)})


if __name__ == "__main__":
    main()
