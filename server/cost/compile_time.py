"""A rough estimate of the real compiler's time: a rule fitted to published times, with an error band.

Two graphs (one prompt length, one decode) of a dense model take rate x layers x (billions of parameters on a core) ^
power. Rate and power are fitted to the rows below. The band is the 10th to 90th percentile of the errors of rows that
were left out of the fit. No row tells whether the graphs of one model are compiled in parallel: the low end assumes
that they are, the high end that they are not, and the estimate is the geometric mean. Mixtures of experts have a range
of their own.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import cache

from ..models.spec import ModelSpec
from ..models.tensors import num_params

NXDI = "github.com/aws-neuron/neuronx-distributed-inference at 4bcdc54, contrib/models"  # trn1.32xlarge, batch 1
ROSA = "github.com/manu-joy/rosa-llm-driven-deployment at e136f04"
WARM = f"2 to 5 min with the compiler's cache, models of 30 to 34 B parameters ({ROSA})"


@dataclass(frozen=True, slots=True)
class CompileRow:
    """One published cold compilation."""

    model: str
    layers: int
    billions: float  # parameters
    cores: int
    seconds: float
    graphs: int = 2
    is_mixture: bool = False
    source: str = NXDI

    @property
    def per_core(self) -> float:
        return self.billions / self.cores


# Compile times, degrees and graphs are from the sources; layers and parameters are from the models' cards.
ROWS = (
    CompileRow("AFM-4.5B", 36, 4.6, 1, 588.37),
    CompileRow("Apertus-8B", 32, 8.05, 2, 359.84),
    CompileRow("ERNIE-4.5-0.3B", 18, 0.36, 1, 133.99),
    CompileRow("EXAONE-4.0-1.2B", 30, 1.28, 1, 452.61),
    CompileRow("Llama-2-7B", 32, 6.74, 2, 362.00),
    CompileRow("MiniCPM4-8B", 32, 8.19, 2, 274.78),
    CompileRow("Mistral-Small-3.1-24B", 40, 23.6, 8, 384.88),
    CompileRow("OLMo-2-1B", 16, 1.48, 2, 96.43),
    CompileRow("OLMo-2-7B", 32, 7.3, 8, 369.97),
    CompileRow("OLMo-3-7B", 32, 7.3, 2, 226.27),
    CompileRow("Phi-3-mini", 32, 3.82, 1, 834.02),
    CompileRow("Phi-3.5-mini", 32, 3.82, 2, 236.26),
    CompileRow("Qwen2-7B", 28, 7.62, 2, 426.10),
    CompileRow("Qwen3-0.6B", 28, 0.6, 2, 125.38),
    CompileRow("Seed-OSS-36B", 64, 36.15, 8, 1007.27),
    CompileRow("SmolLM3-3B", 36, 3.08, 2, 267.18),
    CompileRow("Falcon-7B", 32, 7.22, 2, 558.79),
    CompileRow("Gemma-2B", 18, 2.51, 1, 317.32),
    CompileRow("Gemma-3-1B", 26, 1.0, 1, 253.40),
    CompileRow("GLM-4-9B", 40, 9.4, 2, 876.97),
    CompileRow("GPT-2", 12, 0.124, 2, 40.53),
    CompileRow("Hunyuan-7B", 32, 7.5, 8, 268.57),
    CompileRow("InternLM3-8B", 48, 8.8, 2, 275.75),
    CompileRow("OPT-1.3B", 24, 1.32, 1, 74.34),
    CompileRow("Orion-14B", 40, 14.5, 8, 521.68),
    CompileRow("Phi-1.5", 24, 1.42, 2, 172.73),
    CompileRow("Pythia-2.8B", 32, 2.78, 2, 240.95),
    CompileRow("StableLM-2-1.6B", 24, 1.64, 2, 173.75),
    CompileRow("StarCoder2-3B", 30, 3.03, 1, 355.17),
    CompileRow("BioGPT", 24, 0.347, 1, 98.19),
    CompileRow("SantaCoder", 24, 1.12, 1, 108.65),
    CompileRow("Command-R7B", 32, 8.03, 8, 167.57),
    CompileRow("VaultGemma-1B", 26, 1.04, 1, 194.46),
    CompileRow("XGLM-564M", 24, 0.564, 1, 108.32),
    CompileRow("Persimmon-8B", 36, 9.4, 8, 296.07),
    CompileRow("Qwen3-32B", 64, 32.76, 8, 360, source=ROSA),
    CompileRow("CodeLlama-34B", 48, 33.74, 8, 720, source=ROSA),
    CompileRow("Mixtral-8x7B", 32, 46.7, 8, 1208.41, is_mixture=True),
    CompileRow("Phi-3.5-MoE", 32, 41.9, 8, 1333.15, is_mixture=True),
    CompileRow("Trinity-Nano", 56, 6, 2, 420, 4, True),
    CompileRow("Trinity-Mini", 32, 26, 4, 330, 4, True),
    CompileRow("Trinity-Large", 60, 250, 64, 750, 4, True),
    CompileRow("Qwen3-Coder-30B-A3B", 48, 30.5, 16, 1500, 14, True, ROSA),
)


@dataclass(frozen=True, slots=True)
class CompileTime:
    """Seconds of a cold compilation, with bounds and the basis of the estimate."""

    seconds: float
    low_s: float
    high_s: float
    graphs: int
    nearest: CompileRow
    basis: str


@dataclass(frozen=True, slots=True)
class Rule:
    """The fit of the dense rows, and the range of the other rows relative to it."""

    rate: float
    power: float
    dense: tuple[float, float]  # 10th and 90th percentile of measured over predicted
    mixtures: tuple[float, float]  # least and greatest of measured over predicted

    def seconds(self, layers: int, per_core: float) -> float:
        """Return the seconds of two graphs of a dense model."""
        return float(self.rate * layers * per_core**self.power)


@cache
def rule() -> Rule:
    """Fit log(seconds / layers) to log(billions on a core) by least squares."""
    rows = [row for row in ROWS if not row.is_mixture]
    xs = [math.log(row.per_core) for row in rows]
    ys = [math.log(row.seconds / row.layers) for row in rows]
    power, start = statistics.linear_regression(xs, ys)
    mean = statistics.fmean(xs)
    spread = sum((x - mean) ** 2 for x in xs)
    leverage = [1 / len(xs) + (x - mean) ** 2 / spread for x in xs]
    left_out = [(y - start - power * x) / (1 - h) for x, y, h in zip(xs, ys, leverage, strict=True)]
    tenths = statistics.quantiles(left_out, n=10, method="inclusive")
    fit = Rule(math.exp(start), power, (math.exp(tenths[0]), math.exp(tenths[-1])), (1, 1))
    ratios = [
        row.seconds / fit.seconds(row.layers, row.per_core) / math.sqrt(row.graphs / 2)
        for row in ROWS
        if row.is_mixture
    ]
    return Rule(fit.rate, fit.power, fit.dense, (min(ratios), max(ratios)))


def compile_time(model: ModelSpec, tp: int, graphs: int) -> CompileTime:
    """Estimate a cold compilation of `graphs` graphs of `model` for `tp` cores."""
    fit, per_core = rule(), num_params(model) / 1e9 / tp
    two, more = fit.seconds(model.num_layers, per_core), graphs / 2
    low, high = fit.mixtures if model.experts else fit.dense
    basis = "rough"
    kind = "mixtures" if model.experts else "dense models"
    group = [row for row in ROWS if row.is_mixture == (model.experts is not None)]
    if not min(row.billions for row in group) <= per_core * tp <= max(row.billions for row in group):
        basis = "outside of the measured range"
    nearest = min(group, key=lambda row: abs(math.log(two / fit.seconds(row.layers, row.per_core))))
    return CompileTime(
        seconds=two * math.sqrt(more),
        low_s=two * low * min(1, more),
        high_s=two * high * max(1, more),
        graphs=graphs,
        nearest=nearest,
        basis=f"{basis}, by {len(group)} published compilations of {kind}",
    )
