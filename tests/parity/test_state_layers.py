"""Models with layers that keep a state against transformers: odd heads, chunks, cores, cached prefixes, preemption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from neuronserve.server.config import EngineConfig
from neuronserve.server.config.formats import Quantization
from neuronserve.server.engine.load.loading import LoadedEngine, load_engine
from neuronserve.server.kv_cache.manager import KVCacheManager
from neuronserve.server.scheduler.scheduler import Scheduler
from neuronserve.server.types import Request, SamplingParams
from tests.encoders import save

VOCAB, LENGTH = 97, 150
TOLERANCE = 1e-5  # of the largest logit
SMALL = {"vocab_size": VOCAB, "hidden_size": 60, "intermediate_size": 100, "max_position_embeddings": 256}

LFM2 = {
    **SMALL,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "layer_types": ["conv", "full_attention", "conv"],
}
QWEN = {
    **SMALL,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 36,
    "shared_expert_intermediate_size": 44,
}

MAMBA = {
    **SMALL,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "mamba_n_heads": 10,
    "mamba_d_head": 12,
    "mamba_d_state": 14,
}
GRANITE = MAMBA | {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "residual_multiplier": 0.5,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 100,
}
FALCON = MAMBA | {
    "num_hidden_layers": 1,
    "head_dim": 20,
    "mamba_d_ssm": 60,
    "mamba_n_heads": 5,
    "key_multiplier": 0.7,
    "attention_in_multiplier": 1.2,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 0.9,
    "ssm_out_multiplier": 1.3,
    "ssm_multipliers": [0.9, 1.1, 0.7, 1.2, 0.6],
    "mlp_multipliers": [0.8, 1.4],
    "lm_head_multiplier": 0.5,
    "embedding_multiplier": 2.0,
}
NEMOTRON = SMALL | {
    "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention", "mlp"],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "mamba_num_heads": 12,
    "mamba_head_dim": 10,
    "n_groups": 4,
    "ssm_state_size": 9,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": ("lfm2", LFM2),
    "lfm2-taps": (
        "lfm2",
        LFM2
        | {"conv_L_cache": 5, "conv_bias": True, "hidden_size": 42, "num_attention_heads": 3, "num_key_value_heads": 3},
    ),
    "lfm2-moe": (
        "lfm2_moe",
        LFM2 | {"num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 36},
    ),
    "qwen3-5": ("qwen3_5_text", QWEN),
    "qwen3-5-heads": (
        "qwen3_5_text",
        QWEN | {"linear_num_key_heads": 5, "linear_num_value_heads": 5, "linear_conv_kernel_dim": 3},
    ),
    "qwen3-5-moe": ("qwen3_5_moe_text", QWEN | EXPERTS),
    "granite": ("granitemoehybrid", GRANITE),
    "granite-moe": (
        "granitemoehybrid",
        GRANITE | {"num_local_experts": 4, "num_experts_per_tok": 2, "mamba_proj_bias": True},
    ),
    "falcon-h1": ("falcon_h1", FALCON),
    "falcon-h1-norm": (
        "falcon_h1",
        FALCON | {"mamba_rms_norm": True, "num_hidden_layers": 2, "mamba_norm_before_gate": True},
    ),
    "falcon-h1-gate": ("falcon_h1", FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "bamba": ("bamba", MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "nemotron-h": ("nemotron_h", NEMOTRON),
    "qwen3-next": ("qwen3_next", QWEN | EXPERTS | {"mlp_only_layers": [1]}),
    "qwen3-next-heads": (
        "qwen3_next",
        QWEN | EXPERTS | {"linear_num_key_heads": 7, "linear_num_value_heads": 7, "linear_value_head_dim": 20},
    ),
}


def random_model(name: str) -> Any:
    """transformers' model with random weights, none of which is neutral."""
    kind, options = MODELS[name]
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 1}
    config = transformers.AutoConfig.for_model(kind, **ids, **options)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter, values in (*model.named_parameters(), *model.named_buffers()):
            if parameter.endswith(("inv_freq", "mup_vector")):
                continue
            is_gain = values.dim() == 1 and parameter.endswith("weight")
            scale = 0.2 if values.dim() < 2 else 1.5 * values.shape[-1] ** -0.5
            values.copy_(is_gain + torch.randn_like(values) * scale)
    return model


class Case:
    """A model's checkpoint and transformers' logits of one text."""

    def __init__(self, name: str, directory: Path) -> None:
        model = random_model(name)
        self.directory = save(model, directory)
        self.tokens: list[int] = np.random.default_rng(3).integers(0, VOCAB, LENGTH).tolist()
        with torch.no_grad():
            self.logits = model(torch.tensor([self.tokens]), use_cache=False).logits[0].numpy()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    return cache(lambda name: Case(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def engine(kernel_cache: str) -> Iterator[Callable[..., LoadedEngine]]:
    """(directory, cores, chunk, quantization=None) -> a loaded engine."""
    engines: list[LoadedEngine] = []

    def load(directory: Path, tp: int = 1, chunk: int = 64, quantization: Quantization | None = None) -> LoadedEngine:
        config = EngineConfig(
            model_path=str(directory),
            device="inf2.48xlarge",
            tensor_parallel_size=tp,
            dtype="bfloat16" if quantization else "float32",
            max_model_len=192,
            max_num_seqs=min(3, chunk),
            max_num_batched_tokens=chunk,
            max_num_queued_reqs=2,
            block_size=16,
            enable_prefix_caching=True,
            device_memory_utilization=0.9,
            num_blocks_override=40,
            cpu_threads=2,
            kernel_cache_dir=kernel_cache,
            quantization=quantization,
            allow_unsupported_types=True,
        )
        engines.append(load_engine(config, lambda _: None))
        return engines[-1]

    yield load
    for each in engines:
        each.runner.close()


def worst(got: npt.NDArray[np.float32], want: npt.NDArray[np.float32]) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_logits_are_those_of_transformers(
    case: Callable[[str], Case], engine: Callable[..., LoadedEngine], name: str, tp: int
) -> None:
    known = case(name)
    got = engine(known.directory, tp).runner.logits(known.tokens)
    assert worst(got, known.logits) <= TOLERANCE


class Server:
    """An engine's scheduler and runner, step by step, with the books audited after each."""

    def __init__(self, engine: LoadedEngine, **changes: Any) -> None:
        self.cache = KVCacheManager(replace(engine.cache, **changes))
        self.scheduler, self.runner = Scheduler(engine.scheduler, self.cache), engine.runner
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.preempted = self.steps = 0

    def add(self, name: str, prompt: list[int], count: int, generated: tuple[int, ...] = ()) -> None:
        sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        self.tokens[name] = list(generated)
        self.scheduler.add(
            Request(name, tuple(prompt), sampling, float(len(self.tokens)), generated_token_ids=generated)
        )

    def step(self) -> None:
        self.steps += 1
        plan = self.scheduler.schedule(float(self.steps))
        self.preempted += len(plan.preempted)
        for event in self.scheduler.apply(plan, self.runner.execute(plan), float(self.steps)):
            self.cached[event.request_id] = event.num_cached_tokens
            if event.token_id is not None:
                self.tokens[event.request_id].append(event.token_id)
        assert self.scheduler.audit() == []

    def finish(self) -> dict[str, list[int]]:
        while self.scheduler.has_work:
            self.step()
        return self.tokens


COUNT = 24
SERVED = ["lfm2", "qwen3-5", "granite", "falcon-h1"]
PROMPTS = [50, 33, 5]  # tokens


@pytest.fixture(scope="module")
def continued() -> Callable[[str, tuple[int, ...]], list[int]]:
    """(model, prompt) -> the tokens that transformers generates after it."""
    models = cache(random_model)

    def generate(name: str, prompt: tuple[int, ...]) -> list[int]:
        known = list(prompt)
        for _ in range(COUNT):
            with torch.no_grad():
                logits = models(name)(torch.tensor([known]), use_cache=False).logits[0, -1]
            known.append(int(logits.argmax()))
        return known[len(prompt) :]

    return cache(generate)


Continued = Callable[[str, tuple[int, ...]], list[int]]
Cases = Callable[[str], Case]
Engines = Callable[..., LoadedEngine]


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 7, 64])
def test_chunks_and_batches_of_mixed_steps_continue_from_their_states(
    case: Cases, engine: Engines, continued: Continued, name: str, chunk: int
) -> None:
    known = case(name)
    server = Server(engine(known.directory, chunk=chunk))
    prompts = {str(size): known.tokens[:size] for size in PROMPTS}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, COUNT)
        server.step()  # so that some decode while others are prompts
    assert server.finish() == {each: continued(name, tuple(prompt)) for each, prompt in prompts.items()}


@pytest.mark.parametrize("name", SERVED)
def test_a_prefix_is_continued_from_a_snapshot_inside_of_a_chunk(
    case: Cases, engine: Engines, continued: Continued, name: str
) -> None:
    known = case(name)
    server = Server(engine(known.directory))
    first, second = known.tokens[:50], [*known.tokens[:49], *known.tokens[60:80]]
    for request_id, prompt in (("first", first), ("second", second), ("third", first)):
        server.add(request_id, prompt, COUNT)
        server.finish()
        assert server.tokens[request_id] == continued(name, tuple(prompt))
    assert server.cached == {"first": 0, "second": 48, "third": 48}  # blocks of 16 tokens


@pytest.mark.parametrize("name", SERVED)
def test_a_preempted_sequence_computes_its_state_again(
    case: Cases, engine: Engines, continued: Continued, name: str
) -> None:
    known = case(name)
    server = Server(engine(known.directory), num_blocks=8, enable_prefix_caching=False)
    prompts = {str(begin): known.tokens[begin : begin + 40] for begin in (0, 50)}
    for request_id, prompt in prompts.items():
        server.add(request_id, prompt, COUNT)
    assert server.finish() == {each: continued(name, tuple(prompt)) for each, prompt in prompts.items()}
    assert server.preempted > 0


@pytest.mark.parametrize("name", SERVED)
def test_an_engine_that_follows_another_goes_on_from_the_known_tokens(
    case: Cases, engine: Engines, continued: Continued, name: str
) -> None:
    known = case(name)
    loaded, prompt = engine(known.directory), known.tokens[:50]
    before = Server(loaded)
    before.add("a", prompt, COUNT)
    while len(before.tokens["a"]) < 7:
        before.step()
    after = Server(loaded)  # with books of its own, and other states in the slots
    after.add("b", known.tokens[60:90], COUNT)
    after.add("a", prompt, COUNT, tuple(before.tokens["a"]))
    assert after.finish()["a"] == continued(name, tuple(prompt))


def test_an_aborted_sequence_gives_its_slots_back(case: Cases, engine: Engines) -> None:
    server = Server(engine(case("lfm2").directory))
    for i in range(3):
        server.add(str(i), case("lfm2").tokens[: 40 + i], COUNT)
    server.step()
    for i in range(3):
        server.scheduler.abort(str(i), 1.0)
    states = server.cache.states
    assert states is not None
    assert states.pool.num_free == server.cache.config.num_states - 1
    assert server.scheduler.audit() == []


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_quantized_weights_are_near(case: Cases, engine: Engines, name: str, quantization: Quantization) -> None:
    known = case(name)
    got = engine(known.directory, quantization=quantization).runner.logits(known.tokens)
    assert np.abs(got - known.logits).mean() <= 0.25 * np.abs(known.logits).mean()
