"""Settings of what a plan may deploy on, and of what runs beside the model: what else can be asked (guides/plan.md)."""

from dataclasses import replace

from pydantic import Field
from pydantic_settings import CliToggleFlag

from neuronserve.planner.plan.options import MAX_GUESSES, MAX_LORA_RANK, MAX_LORAS
from neuronserve.server.config import CatalogConfig
from neuronserve.server.device.prices import DEFAULT_REGION
from neuronserve.server.settings.base import Numbers, split_commas
from neuronserve.server.settings.catalog import CatalogSettings


class DeploymentSettings(CatalogSettings):
    """Base of the settings of a plan. The catalogue in force has the prices of the first region."""

    region: str = Field(
        DEFAULT_REGION, description="AWS region whose prices are used; of several, with commas, each part's cheapest"
    )
    logical_nc_configs: Numbers = Field(
        (),
        validation_alias="lnc",
        description="physical cores in a logical one to consider, with commas (default: as each part comes)",
    )
    instances_per_replica: Numbers = Field(
        (), description="instances that a replica is spread over, with commas (default: 1, or as few as hold the model)"
    )
    save_sharded_checkpoint: CliToggleFlag[bool] = Field(
        False, description="weights are sharded on another host, so that a part's own needs no memory for all of them"
    )
    speculative_model: str | None = Field(None, description="draft model of speculative decoding, as MODEL")
    num_speculative_tokens: int | None = Field(
        None, ge=1, le=MAX_GUESSES, description="tokens that the draft guesses in a step"
    )
    acceptance_rate: float | None = Field(
        None, ge=0, le=1, description="share of guesses that are right, those before them being right"
    )
    max_loras: int = Field(0, ge=0, le=MAX_LORAS, description="LoRA adapters on the cores; each slot uses one")
    max_lora_rank: int = Field(16, ge=1, le=MAX_LORA_RANK, description="rank of the LoRA adapters")

    @property
    def catalog_config(self) -> CatalogConfig:
        """What the catalogue is loaded from; the first region is in force."""
        return replace(super().catalog_config, region=self.regions[0])

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that are asked for."""
        return tuple(dict.fromkeys(split_commas(self.region))) or (self.region,)
