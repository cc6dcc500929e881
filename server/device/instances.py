"""Data sheet of the EC2 instances: chips, hosts and networks, one row for each instance. Prices are in prices.json.

Sources: SDK = inf1-arch.rst, inf2-arch.rst, trn1-arch.rst, trn2-arch.rst, trn3-arch.rst, collectives.rst and
ultraserver.rst of github.com/aws-neuron/aws-neuron-sdk at 81ce03ae (2026-08-21). KARP = zz_generated.bandwidth.go of
github.com/aws/karpenter-provider-aws at 1d927085d (2026-08-21), generated from AWS's instance descriptions. 3XL = third
party: describe-instance-types of EC2, read by github.com/alpharomercoma/torchneuronx at 7747a13 (trn2/docs/
PROVISIONING.md, 2026-08) and github.com/foxl-ai/kiln at a04d1fa (2026-10-03). None = not found. UltraServers are listed
as one instance: u-trn2x64 is EC2's own name; trn3-gen1 and trn3-gen2 are names of this catalogue, the SDK has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import DeviceError
from ..host.memory import GIB
from ..typed_json import Counts, Text
from .chips import (
    GB,
    INFERENTIA1,
    INFERENTIA2,
    TRAINIUM1,
    TRAINIUM2,
    TRAINIUM3,
    Chip,
    Link,
)
from .prices import DEFAULT_REGION, Price, PriceBasis, Prices, built_in_prices, regions_with

NO_PRICES = Prices(DEFAULT_REGION)
MAX_REGIONS = 8  # regions that a message names at most


@dataclass(frozen=True, slots=True)
class UltraServer:
    """NeuronLink between instances of one rack."""

    name: Text  # EC2's name of the whole rack
    sizes: Counts  # possible numbers of instances in a group
    link: Link  # from one chip to the chips of other instances


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance type, and figures of one NeuronCore computed from it."""

    name: str
    chip: Chip
    num_chips: int
    vcpus: int
    host_memory_gib: int
    network_gbps: float  # sustained; small sizes burst above it
    link: Link | None  # between its chips
    efa_gbps: float | None = None  # all Elastic Fabric Adapters together; None: there is none
    efa_latency_us: float | None = None  # device memory to device memory of another instance; None: not published
    num_hosts: int = 1  # servers of an UltraServer, which share vcpus and host_memory_gib evenly
    ultraserver: UltraServer | None = None  # the UltraServer that the instance belongs to
    prices: Prices = NO_PRICES  # an hour
    is_user_given: bool = False  # a figure of the instance or its chip is from a user's file

    @property
    def num_cores(self) -> int:
        """Logical NeuronCores of the instance, the ones that software sees."""
        return self.num_chips * self.chip.cores_per_chip

    def with_lnc(self, lnc: int | None) -> Instance:
        """Return the instance with `lnc` physical cores in each logical core; None: as the chip comes.

        Raises DeviceError if the chip cannot.
        """
        return self if lnc is None or lnc == self.chip.lnc else replace(self, chip=self.chip.with_lnc(lnc))

    @property
    def memory_per_host_bytes(self) -> int:
        """Memory of one host, the limit of a process that loads a checkpoint onto its chips."""
        return self.host_memory_gib * GIB // self.num_hosts

    @property
    def core_memory_bytes(self) -> int:
        """Device memory of one NeuronCore: its even share of the chip."""
        return self.chip.memory_gib * GIB // self.chip.cores_per_chip

    @property
    def on_demand_usd(self) -> float | None:
        """On-demand dollars an hour, Linux; None when not known in the region."""
        return self.usd("on_demand")

    def usd(self, basis: PriceBasis) -> float | None:
        """Return dollars an hour; None when not known in the region."""
        price = self.prices.of(basis)
        return None if price is None else price.usd

    def price(self, basis: PriceBasis) -> Price:
        """Return the price of an hour, with source and date. Raises DeviceError when none is known in the region."""
        price = self.prices.of(basis)
        if price is None:
            how = "give --spot-discount, or a price" if basis == "spot" and self.prices.on_demand else "give one"
            elsewhere = regions_with(self.name, basis)
            where = f"; it is for --region {' or '.join(elsewhere)}" if 0 < len(elsewhere) <= MAX_REGIONS else ""
            raise DeviceError(
                f"no {basis} price of {self.name} in {self.prices.region} is known: {how} in a --catalog file{where}"
            )
        return price

    @property
    def allowed_tp(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that the chip allows and the instance has enough cores for, ascending."""
        return tuple(tp for tp in self.chip.tp_degrees if tp <= self.num_cores)

    def check_tp(self, tp: int) -> None:
        """Raise DeviceError when `tp` cores cannot form a tensor-parallel group on this instance."""
        if tp not in self.allowed_tp:
            raise DeviceError(
                f"tensor_parallel_size is {tp}: {self.name} has {self.num_cores} NeuronCores and allows "
                f"{', '.join(map(str, self.allowed_tp))}"
            )

    def check_groups(self, tp: int, dp: int) -> None:
        """Raise DeviceError when `dp` groups of `tp` cores are more than the instance has."""
        if tp * dp > self.num_cores:
            raise DeviceError(
                f"tensor_parallel_size {tp} x data_parallel_size {dp} needs {tp * dp} NeuronCores: "
                f"{self.name} has {self.num_cores}"
            )


_TRN1N = Link("NeuronLink-v2", 768)  # SDK trn1-arch.rst: twice the trn1
_TRN2 = Link("NeuronLink-v3", 1024 * GB / GIB)  # SDK trn2-arch.rst: 1,024 GB/s of the chip's 1,280 stay inside
_TRN3 = Link("NeuronLink-v4", 2048)  # SDK trn3-arch.rst
# SDK trn2-arch.rst: 256 GB/s a chip between instances; ultraserver.rst: groups of 2 or 4
_TRN2U = UltraServer("u-trn2x64", (2, 4), Link("NeuronLink-v3", 256 * GB / GIB))

# chips, vCPU, host GiB, link, EFA: SDK; of trn2.3xlarge 3XL.  Gbps: KARP; of UltraServers SDK (EFA).
# EFA latency: SDK collectives.rst, measured between two trn2.48xlarge.  hosts: SDK.  trn1.2xlarge has no EFA by KARP's
# instance-types page; the SDK prints the burst of its network in that column.
# fmt: off
_ROWS: tuple[Instance, ...] = (
    #         name              chip         chips vCPU   GiB   Gbps    link              EFA Gbps   us  hosts
    Instance("inf1.xlarge",     INFERENTIA1,  1,    4,      8,    5,     None),
    Instance("inf1.2xlarge",    INFERENTIA1,  1,    8,     16,    5,     None),
    Instance("inf1.6xlarge",    INFERENTIA1,  4,   24,     48,   25,     INFERENTIA1.link),
    Instance("inf1.24xlarge",   INFERENTIA1, 16,   96,    192,  100,     INFERENTIA1.link),
    Instance("inf2.xlarge",     INFERENTIA2,  1,    4,     16,    2.083, None),
    Instance("inf2.8xlarge",    INFERENTIA2,  1,   32,    128,   16.667, None),
    Instance("inf2.24xlarge",   INFERENTIA2,  6,   96,    384,   50,     INFERENTIA2.link),
    Instance("inf2.48xlarge",   INFERENTIA2, 12,  192,    768,  100,     INFERENTIA2.link),
    Instance("trn1.2xlarge",    TRAINIUM1,    1,    8,     32,    3.125, None),
    Instance("trn1.32xlarge",   TRAINIUM1,   16,  128,    512,  800,     TRAINIUM1.link,    800),
    Instance("trn1n.32xlarge",  TRAINIUM1,   16,  128,    512, 1600,     _TRN1N,           1600),
    Instance("trn2.3xlarge",    TRAINIUM2,    1,   12,    128,  200,     None,              200),
    Instance("trn2.48xlarge",   TRAINIUM2,   16,  192,   2048, 3200,     _TRN2,            3200,     15),
    Instance("trn2u.48xlarge",  TRAINIUM2,   16,  192,   2048, 3200,     _TRN2,            3200,     15,  1, _TRN2U),
    Instance("u-trn2x64",       TRAINIUM2,   64,  768,   8192, 3200,     _TRN2,            3200,     15,  4),
    Instance("trn3-gen1",       TRAINIUM3,   64,  768,   8192, 12800,    _TRN3,           12800,   None,  4),
    Instance("trn3-gen2",       TRAINIUM3,  144, 2304,  27648, 28800,    _TRN3,           28800,   None, 36),
)
# fmt: on
INSTANCES = tuple(replace(row, prices=built_in_prices(row.name, DEFAULT_REGION)) for row in _ROWS)
