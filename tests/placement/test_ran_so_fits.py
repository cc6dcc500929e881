"""Configurations that ran on real accelerators fit at the default share of memory; impossible ones do not.

`ran.csv` has the configurations of the published measurements that state degree, batch, length and shape, once each,
with the rows they are of. Left out are rows 31 and 32 (OPT-13B and -30B, TP8, 256 slots of 2,048): they are below.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple

import pytest

from neuronserve.planner.plan.memory import Memory
from neuronserve.planner.plan.options import Buckets, PlanOptions, WeightDtype
from neuronserve.planner.simulate.options import SimulationOptions
from neuronserve.server.device.catalog import INSTANCES
from neuronserve.server.device.instances import Instance
from neuronserve.server.device.ledger import MIB
from neuronserve.server.host.memory import GIB
from neuronserve.server.models.sizes import DecoderSizes
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.core_share import CoreShare, score_bytes
from neuronserve.server.placement.fit import budget_bytes
from neuronserve.server.settings.engine import EngineSettings
from tests.model_specs import with_attention

DEFAULT_SHARE = 0.92


class Case(NamedTuple):
    """A configuration: lengths in tokens, and a batch of slots of the full length."""

    name: str
    chip: str
    tp: int
    batch: int
    max_model_len: int
    longest_prompt: int
    model: ModelSpec
    dtype: WeightDtype = "bfloat16"


def decoder(*sizes: int, is_gated: bool = True, experts: int = 0, per_token: int = 0) -> ModelSpec:
    """Layers, hidden, feed-forward, heads, KV heads, head dimension, vocabulary."""
    return DecoderSizes(*sizes, experts, per_token, is_gated).spec("any", 1 << 20)


LLAMA_1B = decoder(16, 2048, 8192, 32, 8, 64, 128_256)
LLAMA_8B = decoder(32, 4096, 14_336, 32, 8, 128, 128_256)
LLAMA_13B = decoder(40, 5120, 13_824, 40, 40, 128, 32_000)
LLAMA_70B = decoder(80, 8192, 28_672, 64, 8, 128, 128_256)
LLAMA_405B = decoder(126, 16_384, 53_248, 128, 8, 128, 128_256)
OPT_30B = decoder(48, 7168, 28_672, 56, 56, 128, 50_272, is_gated=False)


def published() -> list[Case]:
    with (Path(__file__).parent / "ran.csv").open() as file:
        rows = list(csv.DictReader(file))
    sizes = ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
    return [
        Case(
            "rows " + row["row_ids"],
            row["chip"],
            *(int(row[key]) for key in ("tp", "batch", "max_model_len", "longest_prompt")),
            decoder(
                *(int(row[size]) for size in sizes),
                is_gated=row["is_gated"] == "1",
                experts=int(row["experts"]),
                per_token=int(row["experts_per_token"]),
            ),
            "int8" if row["weight_bits"] == "8" else "bfloat16",
        )
        for row in rows
    ]


# The Neuron documentation (github.com/aws-neuron/aws-neuron-sdk at 81ce03ae), below libraries/nxd-inference; trn2 is
# with LNC=2. The last is a sample of aws-neuron-samples at aa880a24, for transformers-neuronx.
DOCUMENTED = [
    Case("trn2-llama3.1-405b-tutorial.rst", "Trainium2", 64, 1, 2048, 1024, LLAMA_405B),
    Case("trn2-llama3.1-405b-speculative-tutorial.rst", "Trainium2", 64, 1, 12_800, 12_288, LLAMA_405B),
    Case("trn2-llama3.3-70b-tutorial.rst", "Trainium2", 64, 1, 12_800, 12_288, LLAMA_70B),
    Case("trn2-llama3.3-70b-tutorial.rst, up to 4", "Trainium2", 64, 4, 12_800, 12_288, LLAMA_70B),
    Case("trn2-llama3.3-70b-apc-tutorial.ipynb", "Trainium2", 64, 4, 8192, 8192, LLAMA_70B),
    Case("trn2-llama3.3-70b-dp-tutorial.ipynb", "Trainium2", 32, 4, 8192, 8192, LLAMA_70B),
    Case("trn2-llama3.3-70b-fp8.rst", "Trainium2", 64, 4, 5120, 5120, LLAMA_70B, "fp8"),
    Case("card_llama33_70b.yml, config2", "Trainium2", 32, 8, 16_384, 16_384, LLAMA_70B),
    Case("card_llama33_70b.yml, config3", "Trainium2", 64, 1, 16_384, 16_384, LLAMA_70B),
    Case("card_llama33_70b.yml, config4", "Trainium1", 32, 1, 16_384, 16_384, LLAMA_70B),
    Case("trn2-llama3.1-8b-multi-lora-tutorial.ipynb", "Trainium2", 32, 2, 64, 64, LLAMA_8B),
    Case("llama-3.1-8b-32k-sampling.ipynb", "Inferentia2", 24, 1, 32_768, 28_672, LLAMA_8B),
]


def part(chip: str) -> Instance:
    return next(each for each in INSTANCES if each.chip.name == chip)


def lacks(case: Case, share: float = DEFAULT_SHARE) -> int:
    """Bytes over the budget of a core, as `plan` counts them; negative when all slots fit."""
    device = part(case.chip)
    memory = Memory(case.model, Buckets(prefill=case.longest_prompt, decode=case.max_model_len))
    needed = memory.needed_bytes(case.tp, case.dtype, case.batch, lnc=device.chip.lnc)
    return needed - budget_bytes(device, share)


@pytest.mark.parametrize("case", [*published(), *DOCUMENTED], ids=lambda case: case.name)
def test_what_ran_fits(case: Case) -> None:
    assert lacks(case) <= 0


def test_the_default_share_is_the_smallest_round_one_that_all_that_ran_fit_in() -> None:
    """The fullest, Llama-2-13B on one chip of Inferentia2 and OPT-30B with 256 slots, take 0.909 and 0.912."""
    for default in (EngineSettings, PlanOptions, SimulationOptions):
        fields = getattr(default, "model_fields", None) or default.__dataclass_fields__
        assert fields["device_memory_utilization"].default == DEFAULT_SHARE
    cases = published()
    assert all(lacks(case, 0.915) <= 0 for case in cases)
    assert [case.name for case in cases if lacks(case, 0.905) > 0] == ["rows 948", "rows 5 11 21 29", "rows 35"]


@pytest.mark.parametrize(
    ("slots", "length"),
    [(256, 2048), (128, 4096), (64, 8192), (32, 16_384), (16, 32_768), (8, 65_536), (4, 131_072)],
)
def test_the_published_capacity_of_a_core_is_met(slots: int, length: int) -> None:
    """optimum-neuron 6373c379, Llama-3.1-8B on Inferentia2 at TP8, prompts in chunks of 1,024: so many, not twice.

    The page works these out of one measurement, as it does the 4 slots of 32k with whole prompts.
    """
    case = Case("", "Inferentia2", 8, slots, length, 1024, LLAMA_8B)
    assert lacks(case) <= 0 < lacks(case._replace(batch=2 * slots), 1.0)
    assert lacks(Case("", "Inferentia2", 8, 4, 32_768, 32_768, LLAMA_8B)) <= 0


REFUSED = [
    # 66 GiB of weights for each core of 16 GiB
    Case("Llama-3.3-70B on one chip", "Inferentia2", 2, 1, 128, 128, LLAMA_70B),
    # aws-neuron-sdk #741: 13B fits on one chip with few slots and short contexts only
    Case("Llama-2-13B on one chip, 8 of 4,096", "Inferentia2", 2, 8, 4096, 2048, LLAMA_13B),
    # rows 31 and 32 of the published measurements: KV alone is 50 and 84 GiB a core, so that the page must err
    Case("row 31", "Trainium1", 8, 256, 2048, 128, decoder(40, 5120, 20_480, 40, 40, 128, 50_272, is_gated=False)),
    Case("row 32", "Trainium1", 8, 256, 2048, 128, OPT_30B),
    # trn2-llama3.1-405b-tutorial.rst takes all 64 cores of the instance: 24 GiB hold an eighth of 811 GB no more
    Case("Llama-3.1-405B on a quarter of trn2", "Trainium2", 16, 1, 2048, 1024, LLAMA_405B),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_what_cannot_be_held_is_refused(case: Case) -> None:
    assert lacks(case, 1.0) > 0


def test_scores_that_no_kernel_spares_are_what_runs_out_above_32k() -> None:
    """optimum-neuron 6373c379: 4 x length^2 x 2 bytes, 8 GiB at 32k and 32 GiB at 64k, of Llama-3.1-8B at TP8.

    By the rule of the libraries such prompts run the flash attention kernel, which keeps none; heads above 128 do not.
    """
    share = CoreShare.of(LLAMA_8B, 8)
    assert score_bytes(LLAMA_8B, share, 32_768, 1) == score_bytes(LLAMA_8B, share, 65_536, 1) == 0
    wide = with_attention(LLAMA_8B, head_dim=256)
    assert [score_bytes(wide, CoreShare.of(wide, 8), n, 1) / GIB for n in (32_768, 65_536)] == [8, 32]
    longest = {n: lacks(Case("", "Inferentia2", 8, 1, n, n, wide), 1.0) <= 0 for n in (32_768, 65_536)}
    assert longest == {32_768: True, 65_536: False}


@pytest.mark.parametrize(
    ("lnc", "tokens", "kept_mib"),
    [
        (1, 2048, 32),  # one physical core: the kernel from 4,096 tokens on
        (1, 4096, 0),
        (1, 4100, 0),
        (2, 256, 0),  # two: lengths of a multiple of 256, above 1,024 of 512
        (2, 640, 3.125),
        (2, 768, 0),
        (2, 1024, 0),
        (2, 1280, 12.5),
        (2, 12_288, 0),
    ],
)
def test_scores_are_kept_where_no_flash_attention_runs(lnc: int, tokens: int, kept_mib: float) -> None:
    assert score_bytes(LLAMA_8B, CoreShare.of(LLAMA_8B, 8), tokens, lnc) == kept_mib * MIB


@pytest.mark.parametrize(
    ("tp", "heads", "query_heads", "kv_heads"),
    [
        (1, (32, 8), 32, 8),
        (2, (32, 8), 16, 4),
        (8, (32, 8), 4, 1),
        (12, (32, 8), 3, 3),  # not divisible: KV heads become as many as the query heads
        (16, (32, 8), 2, 1),
        (24, (32, 8), 2, 1),  # three copies of each KV head
        (64, (128, 8), 2, 1),
        (24, (64, 8), 3, 1),
        (24, (32, 32), 2, 2),
        (2, (4, 1), 2, 1),
        (4, (6, 2), 2, 1),
        (3, (4, 2), 2, 2),
    ],
)
def test_heads_of_a_core_as_the_library_divides_them(
    tp: int, heads: tuple[int, int], query_heads: int, kv_heads: int
) -> None:
    model = with_attention(LLAMA_1B, num_heads=heads[0], num_kv_heads=heads[1])
    assert CoreShare.of(model, tp) == CoreShare(tp, query_heads, kv_heads)
