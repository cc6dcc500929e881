"""Data sheet of the chips, Inferentia1 to Trainium3: facts with their sources, no formulas and no guesses.

Sources: SDK = pages of github.com/aws-neuron/aws-neuron-sdk at 81ce03ae (2026-08-21): inferentia.rst, inferentia2.rst,
trainium.rst, trainium2.rst, trainium3.rst, neuron-core-v*.rst, data-types.rst, logical-neuroncore-config.rst,
trn2-arch.rst, trn3-arch.rst, and of NxD Inference feature-guide.rst, api-guide.rst, moe-arch-deep-dive.rst and
trn3-gpt-oss-120b-tutorial.rst.
ON = github.com/huggingface/optimum-neuron at 213224e6 (2026-08-19). None = not published on the pages read.

AWS prints the same bandwidths as GiB/s on one page and as GB/s on another (7.4 % apart). The smaller, GB/s, is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..errors import DeviceError
from ..host.memory import GIB
from ..typed_json import Positive, Text

Topology = Literal["ring", "torus", "switch"]

GB = 10**9


@dataclass(frozen=True, slots=True)
class Link:
    """Chip-to-chip connection: its generation, and the bandwidth of one chip over all its links together."""

    generation: Text
    gib_s_per_chip: Positive


@dataclass(frozen=True, slots=True)
class Chip:
    """An accelerator chip. Sizes and rates are per chip; cores share them evenly."""

    name: str
    core_name: str
    cores_per_chip: int  # logical cores, if the default groups physical ones
    memory_gib: int  # device memory, GiB
    bandwidth_gb_s: float  # device memory, 10**9 bytes/s
    tflops: Mapping[str, float | None] = field(hash=False)  # dense peak by element type, 10**12 op/s; None: not listed
    dtypes: tuple[str, ...]  # element types that the hardware computes in
    link: Link | None
    tp_degrees: tuple[int, ...]  # tensor-parallel degrees; empty: no list is published
    lnc: int = 1  # physical cores in a logical core (logical NeuronCore configuration)
    topology: Topology = "ring"  # how the chips of one instance are linked
    is_user_given: bool = False  # a figure is from a user's file, so no measurement supports its times
    lnc_choices: tuple[int, ...] = (1,)  # values of `lnc` that Neuron's software accepts
    regrouped_from: int | None = None  # the default `lnc`, if another was chosen

    @property
    def physical_cores(self) -> int:
        """NeuronCores in silicon."""
        return self.cores_per_chip * self.lnc

    def with_lnc(self, lnc: int) -> Chip:
        """Return the chip with `lnc` physical cores in each logical core, which share all its figures evenly.

        Raises DeviceError for a configuration that the chip does not have.
        """
        if lnc not in self.lnc_choices:
            choices = " or ".join(map(str, self.lnc_choices))
            raise DeviceError(f"logical NeuronCore configuration is {lnc}: on {self.name} it can be {choices}")
        default = self.regrouped_from or self.lnc
        regrouped_from = None if lnc == default else default
        return replace(self, cores_per_chip=self.physical_cores // lnc, lnc=lnc, regrouped_from=regrouped_from)


INFERENTIA1 = Chip(
    name="Inferentia1",
    core_name="NeuronCore-v1",  # SDK inferentia.rst
    cores_per_chip=4,  # SDK inferentia.rst
    memory_gib=8,  # SDK inferentia.rst
    bandwidth_gb_s=50,  # SDK inferentia.rst
    tflops={
        "float32": None,  # SDK data-types.rst: cast to bfloat16, no rate of its own
        "bfloat16": 64,  # SDK inferentia.rst
        "float16": 64,  # SDK inferentia.rst
        "int8": 128,  # SDK inferentia.rst
    },
    dtypes=("bfloat16", "float16", "int8"),  # SDK neuron-core-v1.rst; float32 is cast to bfloat16
    link=Link("NeuronLink-v1", 32),  # SDK inferentia.rst; wired on inf1.6xlarge and inf1.24xlarge only
    # SDK feature-guide.rst lists none for Inf1; this emulation offers the degrees of Inf2.
    tp_degrees=(1, 2, 4, 8, 12, 24),
    topology="ring",  # SDK inf1-arch.rst, in its figure
)

INFERENTIA2 = Chip(
    name="Inferentia2",
    core_name="NeuronCore-v2",  # SDK inferentia2.rst
    cores_per_chip=2,  # SDK inferentia2.rst
    memory_gib=32,  # SDK inferentia2.rst
    bandwidth_gb_s=820,  # SDK inferentia2.rst
    tflops={
        "float32": 47.5,  # SDK inferentia2.rst
        "tf32": 190,  # SDK inferentia2.rst
        "bfloat16": 190,  # SDK inferentia2.rst
        "float16": 190,  # SDK inferentia2.rst
        "cfp8": 190,  # SDK inferentia2.rst
        # SDK data-types.rst converts integer matmuls to FP32: int8 is a format of stored weights, not of computing.
        "int8": 380,  # SDK inferentia2.rst
    },
    dtypes=("float32", "tf32", "bfloat16", "float16", "cfp8", "uint8", "int32", "uint32"),  # SDK data-types.rst
    link=Link("NeuronLink-v2", 192),  # SDK inferentia2.rst since 2023-05-26; older pages say 384 and 768
    tp_degrees=(1, 2, 4, 8, 12, 24),  # SDK feature-guide.rst: 1, 2, 4, 8, 24; ON llama2-7b published 12
    topology="ring",  # ON benchmark.mdx, neuron-ls of inf2.48xlarge: device i is connected to i - 1 and i + 1
)

TRAINIUM1 = Chip(
    name="Trainium1",
    core_name="NeuronCore-v2",  # SDK trainium.rst
    cores_per_chip=2,  # SDK trainium.rst
    memory_gib=32,  # SDK trainium.rst
    bandwidth_gb_s=820,  # SDK trainium.rst
    tflops={
        "float32": 47.5,  # SDK trainium.rst
        "tf32": 190,  # SDK trainium.rst
        "bfloat16": 190,  # SDK trainium.rst
        "float16": 190,  # SDK trainium.rst
        "cfp8": 190,  # SDK trainium.rst
        "int8": 380,  # SDK trainium.rst; storage only, as on Inferentia2
    },
    dtypes=("float32", "tf32", "bfloat16", "float16", "cfp8", "uint8", "int32", "uint32"),  # SDK data-types.rst
    link=Link("NeuronLink-v2", 384),  # SDK trainium.rst: 4 links where Inferentia2 has 2
    tp_degrees=(1, 2, 8, 16, 32),  # SDK feature-guide.rst
    topology="torus",  # SDK trainium.rst: 4x4
)

TRAINIUM2 = Chip(
    name="Trainium2",
    core_name="NeuronCore-v3",  # SDK trainium2.rst
    # SDK logical-neuroncore-config.rst: 8 physical cores; by default two make one logical core, with 24 GiB.
    cores_per_chip=4,
    memory_gib=96,  # SDK trainium2.rst
    bandwidth_gb_s=2900,  # SDK trainium2.rst: 2.9 TB/s
    tflops={
        "float32": 181,  # SDK trainium2.rst
        "tf32": 667,  # SDK trainium2.rst
        "bfloat16": 667,  # SDK trainium2.rst
        "float16": 667,  # SDK trainium2.rst
        "fp8": 1299,  # SDK trainium2.rst: dense; 2563 with sparsity
        "int8": None,  # SDK trainium2.rst lists none
    },
    # SDK data-types.rst (all of NeuronCore-v2, and 64-bit integers) and trainium2.rst
    dtypes=("float32", "tf32", "bfloat16", "float16", "cfp8", "fp8", "uint8", "int32", "uint32", "int64", "uint64"),
    link=Link("NeuronLink-v3", 1280 * GB / GIB),  # SDK trainium2.rst: 1.28 TB/s
    tp_degrees=(1, 2, 4, 8, 16, 32, 64),  # SDK feature-guide.rst: logical cores with LNC 2; LNC 1 is not listed
    lnc=2,  # SDK api-guide.rst: default on trn2
    lnc_choices=(1, 2),  # SDK logical-neuroncore-config.rst
    topology="torus",  # SDK trn2-arch.rst: 4x4, and rings over the four instances of an UltraServer
)

TRAINIUM3 = Chip(
    name="Trainium3",
    core_name="NeuronCore-v4",  # SDK trainium3.rst
    cores_per_chip=4,  # SDK trainium3.rst: 8 physical; two make one logical core by moe-arch-deep-dive.rst
    memory_gib=144,  # SDK trainium3.rst
    bandwidth_gb_s=4900,  # SDK trainium3.rst: 4.9 TB/s
    tflops={
        "float32": 183,  # SDK trainium3.rst
        "tf32": 671,  # SDK trainium3.rst
        "bfloat16": 671,  # SDK trainium3.rst
        "float16": 671,  # SDK trainium3.rst
        "mxfp8": 2517,  # SDK trainium3.rst
        "mxfp4": 2517,  # SDK trainium3.rst
        "int8": None,  # SDK trainium3.rst lists none
    },
    # SDK data-types.rst (all of NeuronCore-v3) and trainium3.rst
    dtypes=(*TRAINIUM2.dtypes, "mxfp8", "mxfp4"),
    link=Link("NeuronLink-v4", 2560 * GB / GIB),  # SDK trainium3.rst: 2.56 TB/s
    # SDK feature-guide.rst lists none, trn3-gpt-oss-120b-tutorial.rst uses 8; this emulation offers those of Trainium2.
    tp_degrees=TRAINIUM2.tp_degrees,
    lnc=2,  # SDK trn3-gpt-oss-120b-tutorial.rst
    lnc_choices=(1, 2),  # SDK logical-neuroncore-config.rst
    topology="switch",  # SDK trn3-arch.rst: NeuronSwitch-v1
)

CHIPS = (INFERENTIA1, INFERENTIA2, TRAINIUM1, TRAINIUM2, TRAINIUM3)
