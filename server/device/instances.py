"""Data sheet of the EC2 instances: their chips, host and prices, one row each.

Sources: SDK = inf1-arch.rst, inf2-arch.rst, trn1-arch.rst, trn2-arch.rst, trn3-arch.rst of
github.com/aws-neuron/aws-neuron-sdk at 81ce03ae (2026-08-21). KARP = github.com/aws/karpenter-provider-aws at 1d927085d
(2026-08-21), generated from the AWS price list and instance descriptions. None = not found. UltraServers are listed as
one instance: u-trn2x64 is EC2's own name; trn3-gen1 and trn3-gen2 are named here, the SDK gives no type names.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.device.parts import GB, GIB, INFERENTIA1, INFERENTIA2, TRAINIUM1, TRAINIUM2, TRAINIUM3, Chip, Link
from server.device.prices import DEFAULT_REGION, Price, PriceBasis, Prices
from server.errors import DeviceError

ON_DEMAND_DATE = "2026-07-20"  # KARP zz_generated.pricing_aws.go, "generated at"
RESERVED_DATE = "2024-09-16"  # SDK benchmarks/*/*instance_prices.csv, first published
ON_DEMAND_SOURCE = "AWS price list, by karpenter-provider-aws at 1d927085d"
RESERVED_SOURCE = "AWS Neuron SDK benchmark pages, 3 years reserved, effective"


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance type, and the figures of one NeuronCore that follow from it."""

    name: str
    chip: Chip
    num_chips: int
    vcpus: int
    host_memory_gib: int
    network_gbps: float  # sustained; small sizes burst above it
    link: Link | None  # between its chips
    prices: Prices  # an hour
    is_user_given: bool = False  # a figure of it or of its chip is from a user's file

    @property
    def num_cores(self) -> int:
        """NeuronCores of the instance."""
        return self.num_chips * self.chip.cores_per_chip

    @property
    def core_memory_bytes(self) -> int:
        """Device memory of one NeuronCore: its even share of the chip."""
        return self.chip.memory_gib * GIB // self.chip.cores_per_chip

    @property
    def on_demand_usd(self) -> float | None:
        """On-demand dollars an hour, Linux; None when not known in the region."""
        return self.usd("on_demand")

    @property
    def reserved_usd(self) -> float | None:
        """Effective dollars an hour, reserved for three years; None when not known in the region."""
        return self.usd("reserved")

    def usd(self, basis: PriceBasis) -> float | None:
        """Dollars an hour; None when not known in the region."""
        price = self.prices.of(basis)
        return None if price is None else price.usd

    def price(self, basis: PriceBasis) -> Price:
        """Dollars an hour, with source and date. Raises DeviceError when the catalogue has none for the region."""
        price = self.prices.of(basis)
        if price is None:
            how = "give --spot-discount, or a price" if basis == "spot" and self.prices.on_demand else "give one"
            raise DeviceError(
                f"no {basis} price of {self.name} in {self.prices.region} is known: {how} in a --catalog file"
            )
        return price

    @property
    def allowed_tp(self) -> tuple[int, ...]:
        """Tensor-parallel degrees that the part allows and its cores can carry, ascending."""
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


def _prices(on_demand: float | None, reserved: float | None) -> Prices:
    """Prices of a built-in row, with their source and date."""
    return Prices(
        DEFAULT_REGION,
        None if on_demand is None else Price(on_demand, ON_DEMAND_SOURCE, ON_DEMAND_DATE),
        None if reserved is None else Price(reserved, RESERVED_SOURCE, RESERVED_DATE),
    )


_P = _prices
_TRN1N = Link("NeuronLink-v2", 768)  # SDK trn1-arch.rst: twice the trn1
_TRN2 = Link("NeuronLink-v3", 1024 * GB / GIB)  # SDK trn2-arch.rst: 1,024 GB/s of the chip's 1,280 stay inside
_TRN3 = Link("NeuronLink-v4", 2048)  # SDK trn3-arch.rst

# chips, vCPU, host GiB, link: SDK.  Gbps: KARP zz_generated.bandwidth.go; of UltraServers SDK (EFA).
# on-demand: KARP zz_generated.pricing_aws.go.
# reserved: SDK benchmarks/*/*instance_prices.csv ("RI-Effective hourly rate").
# fmt: off
INSTANCES: tuple[Instance, ...] = (
    #         name              chip         chips vCPU   GiB   Gbps    link                 on-demand  reserved
    Instance("inf1.xlarge",     INFERENTIA1,  1,    4,      8,    5,     None,             _P(0.228,    0.110)),
    Instance("inf1.2xlarge",    INFERENTIA1,  1,    8,     16,    5,     None,             _P(0.362,    0.174)),
    Instance("inf1.6xlarge",    INFERENTIA1,  4,   24,     48,   25,     INFERENTIA1.link, _P(1.180,    0.567)),
    Instance("inf1.24xlarge",   INFERENTIA1, 16,   96,    192,  100,     INFERENTIA1.link, _P(4.721,    2.269)),
    Instance("inf2.xlarge",     INFERENTIA2,  1,    4,     16,    2.083, None,             _P(0.7582,   0.328)),
    Instance("inf2.8xlarge",    INFERENTIA2,  1,   32,    128,   16.667, None,             _P(1.96786,  0.850)),
    Instance("inf2.24xlarge",   INFERENTIA2,  6,   96,    384,   50,     INFERENTIA2.link, _P(6.49063,  2.804)),
    Instance("inf2.48xlarge",   INFERENTIA2, 12,  192,    768,  100,     INFERENTIA2.link, _P(12.98127, 5.608)),
    Instance("trn1.2xlarge",    TRAINIUM1,    1,    8,     32,    3.125, None,             _P(1.34375,  0.512)),
    Instance("trn1.32xlarge",   TRAINIUM1,   16,  128,    512,  800,     TRAINIUM1.link,   _P(21.50,    8.197)),
    Instance("trn1n.32xlarge",  TRAINIUM1,   16,  128,    512, 1600,     _TRN1N,           _P(24.78,    None)),
    Instance("trn2.48xlarge",   TRAINIUM2,   16,  192,   2048, 3200,     _TRN2,            _P(None,     None)),
    Instance("trn2u.48xlarge",  TRAINIUM2,   16,  192,   2048, 3200,     _TRN2,            _P(None,     None)),
    Instance("u-trn2x64",       TRAINIUM2,   64,  768,   8192, 3200,     _TRN2,            _P(None,     None)),
    Instance("trn3-gen1",       TRAINIUM3,   64,  768,   8192, 12800,    _TRN3,            _P(None,     None)),
    Instance("trn3-gen2",       TRAINIUM3,  144, 2304,  27648, 28800,    _TRN3,            _P(None,     None)),
)
# fmt: on
