"""Training of the default model: its network against transformers, its optimizer, its schedule. Needs torch."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaForCausalLM  # noqa: E402

from tools.default_model.export import export  # noqa: E402
from tools.default_model.model import Llama, Shape  # noqa: E402
from tools.default_model.optimizer import Optimizer, orthogonalized  # noqa: E402
from tools.default_model.torch_backend import TorchBackend  # noqa: E402
from tools.default_model.train import TrainingRun, TrainingState, parser, rate  # noqa: E402


@pytest.fixture
def shipped(tmp_path: Path) -> tuple[Llama, Path]:
    """A network as it starts, and the package exported from it."""
    torch.manual_seed(0)
    model = Llama(Shape())
    torch.save({"model": model.state_dict()}, tmp_path / "checkpoint.pt")
    assert export(tmp_path / "checkpoint.pt", tmp_path) == sum(p.numel() for p in model.parameters())
    return model, tmp_path


def test_network_computes_what_transformers_computes(shipped: tuple[Llama, Path]) -> None:
    model, directory = shipped
    model.load_state_dict({k: v.bfloat16().float() for k, v in model.state_dict().items()})
    reference = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.randint(0, 2048, (2, 40))
    rows = torch.arange(39)
    with torch.no_grad():
        ours = model(tokens, rows, tokens[0, 1:])
        logits = reference(tokens).logits[0, :-1]
    theirs = torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum")
    assert float(ours) == pytest.approx(float(theirs), rel=2e-3)  # the rotation of the trainer is in BF16


def test_reference_backend_gives_the_same_answer_alone_and_in_a_batch(shipped: tuple[Llama, Path]) -> None:
    backend = TorchBackend(shipped[1])
    prompts = [[5, 9, 77], [8] * 20, [300, 301]]
    together = backend.generate(prompts, 6)
    assert together == [backend.generate([prompt], 6)[0] for prompt in prompts]
    assert len(backend.nats([5, 6, 7, 8])) == 3


@pytest.mark.parametrize("shape", [(3, 64, 32), (2, 32, 96), (1, 48, 48)])
def test_muon_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalized(torch.randn(shape)))
    assert values.max() < 1.4
    assert values.median() > 0.6


@pytest.mark.thorough  # half a minute of training
def test_training_steps_lower_the_loss_on_what_is_repeated() -> None:
    torch.manual_seed(2)
    model = Llama(Shape())
    optimizer = Optimizer(model, muon_lr=0.01, adam_lr=0.003)
    tokens = torch.randint(8, 2048, (2, 32))
    rows, losses = torch.arange(31), []
    for _ in range(8):
        loss = model(tokens, rows, tokens[0, 1:]) / 31
        loss.backward()
        optimizer.step(1.0)
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 1


def test_rate_warms_up_stays_and_falls_to_zero() -> None:
    assert rate(TrainingState(step=0), 10, 100) == pytest.approx(0.1)
    assert rate(TrainingState(step=50, tokens=10**6), 10, 100) == 1
    assert rate(TrainingState(step=50, tokens=150, decay_from=100), 10, 100) == pytest.approx(0.5)
    assert rate(TrainingState(step=50, tokens=900, decay_from=100), 10, 100) == 0


def arguments(out: Path, *more: str) -> Namespace:
    sizes = ("--step-tokens", "256", "--tokens", "1500", "--decay-tokens", "700", "--warmup-steps", "1")
    return parser().parse_args(["--out", str(out), "--no-compile", *sizes, *more])


@pytest.mark.thorough
def test_a_run_ends_by_itself_and_can_be_taken_up_again(tmp_path: Path) -> None:
    TrainingRun(arguments(tmp_path)).train()
    assert {"before_decay.pt", "final.pt"} <= {path.name for path in tmp_path.iterdir()}
    longer = TrainingRun(arguments(tmp_path, "--resume", str(tmp_path / "before_decay.pt"), "--tokens", "12000"))
    begun = longer.progress.tokens
    assert 0 < begun < 12000
    longer.train()
    assert longer.progress.tokens >= 12000


def test_a_pause_is_not_counted_as_training_time(tmp_path: Path) -> None:
    run = TrainingRun(arguments(tmp_path))
    for seconds in (1.0, 1.0, 1.0, 3600.0):
        run._account(seconds, 10)
    assert run.progress.seconds == pytest.approx(7.0)
    assert run.progress.tokens == 40


def test_sigterm_saves_what_was_learned(tmp_path: Path) -> None:
    run = TrainingRun(arguments(tmp_path))
    run.stop()
    run.train()
    assert (tmp_path / "latest.pt").exists()
    assert not (tmp_path / "final.pt").exists()
