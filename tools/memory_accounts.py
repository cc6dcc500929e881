"""Compare the memory account with published ones: `python -m tools.memory_accounts` prints MiB on a core by category.

The coefficients of server/placement/runtime_memory.py are those of the first account's ranks 1 to 7. The others took no
part in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from neuronserve.server.device.ledger import MIB, USES
from neuronserve.server.models.public import NAMED, candidates
from neuronserve.server.models.spec import ModelSpec
from neuronserve.server.placement.footprint import Footprint, ServingShape, StepLimits


@dataclass(frozen=True, slots=True)
class Measured:
    """A published account of one core, in MiB. "tensors" are weights and KV together."""

    name: str
    source: str
    model: str
    tp: int
    batch: int
    positions: int
    core: int  # in its group; 1 where all cores were alike, or the mean of all is given
    uses: Mapping[str, float]

    @property
    def spec(self) -> ModelSpec:
        return NAMED[self.model] if self.model in NAMED else candidates(self.model)[0].spec

    def computed(self) -> dict[str, float]:
        """Return the account of the server for the same core, in MiB."""
        limits = StepLimits(max(self.positions, self.batch), self.batch, 1)
        shape = ServingShape("bfloat16", self.positions, 32, limits, fills_first_core=self.core == 0)
        footprint = Footprint.of(self.spec, self.tp, shape)
        blocks = self.batch * footprint.groups.blocks_of(self.positions)
        uses: Mapping[str, int] = footprint.of_core(self.core, blocks)  # type: ignore[assignment]
        mib = {use: uses[use] / MIB for use in USES}
        return mib | {"tensors": mib["weights"] + mib["kv"], "all": sum(mib.values())}


OPTIMUM = "optimum-neuron 6373c379, benchmark/vllm/memory_capacity_analysis.md"
RANK_0 = {"weights": 3767, "kv": 2048, "scratchpad": 1024, "collectives": 472, "dma_rings": 392, "code": 319}
RANK_1 = {"weights": 1948, "kv": 2048, "scratchpad": 1024, "collectives": 126, "dma_rings": 220, "code": 228}
NO_MEMORY = {  # of 16,384: the next allocation failed. Its GB and MB are of 1,024.
    "tensors": 13.170 * 1024,
    "scratchpad": 512,
    "collectives": 367.002,
    "dma_rings": 1.471 * 1024,
    "code": 482.43,
    "all": 15.972 * 1024,
}
ACCOUNTS = (
    Measured("8B TP8, rank 0", OPTIMUM, "llama-8b", 8, 32, 4096, 0, {**RANK_0, "runtime": 8, "all": 8029}),
    Measured("8B TP8, ranks 1-7", OPTIMUM, "llama-8b", 8, 32, 4096, 1, {**RANK_1, "runtime": 7, "all": 5600}),
    Measured("70B TP12", "transformers-neuronx #92", "llama-70b", 12, 1, 2048, 1, NO_MEMORY),
    Measured(
        "Qwen3-30B-A3B TP8",
        "optimum-neuron a4dafb1e, benchmark/vllm/qwen3-30B-A3B-2507/README.md: 74.7 % in use",
        *("Qwen/Qwen3-30B-A3B-Instruct-2507", 8, 32, 4096, 1),
        {"all": 0.747 * 16384},
    ),
)


def rows(measured: Measured) -> Iterator[tuple[str, float, float]]:
    """Yield category, published and computed MiB."""
    computed = measured.computed()
    for use in (*USES, "tensors", "all"):
        if use in measured.uses:
            yield use, measured.uses[use], computed[use]


def table() -> str:
    """Return the accounts as a table of Markdown: published, computed, and the error of the computed."""
    cells = {one.name: {use: (there, here) for use, there, here in rows(one)} for one in ACCOUNTS}
    shown = [use for use in (*USES, "tensors", "all") if any(use in each for each in cells.values())]
    lines = [f"| {use} | {' | '.join(_cell(each.get(use)) for each in cells.values())} |" for use in shown]
    return "\n".join([f"| MiB | {' | '.join(cells)} |", f"|---|{'---|' * len(cells)}", *lines])


def _cell(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return "-"
    there, here = pair
    return f"{there:,.0f}: {here:,.0f}, {here / there - 1:+.1%}"


if __name__ == "__main__":
    print(table())
    for one in ACCOUNTS:
        print(f"{one.name}: {one.source}")
