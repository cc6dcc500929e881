"""An observed endpoint as a calibration: the starting calibration, scaled, with its evidence."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from ...server.cost.calibration import Calibration, GroupError
from ...server.cost.evidence import Evidence, Sample
from ..calibrate.step_errors import stats_of
from .deployment import Deployment
from .fit import SCALES, ObservedFit, Residual, decode_terms, fit_endpoint
from .observation import Observations


@dataclass(frozen=True, slots=True)
class ObservedEndpoint:
    """Result for one endpoint."""

    label: str  # of the endpoint, without credentials
    date: str  # ISO
    deployment: Deployment
    base: Calibration
    observations: Observations
    fit: ObservedFit

    @classmethod
    def of(
        cls, label: str, date: str, observations: Observations, deployment: Deployment, base: Calibration
    ) -> ObservedEndpoint:
        """Fit `base` to the observations. Raises SettingsError if there are none."""
        fit = fit_endpoint(observations.used, deployment, base)
        return cls(label, date, deployment, base, observations, fit)

    @property
    def calibration(self) -> Calibration:
        """Calibration of this endpoint. Published measurements stay as evidence for the error of the formulas."""
        cost, stack, fit = self.deployment.cost(self.base), self.deployment.stack.host, self.fit
        shared, scales = decode_terms(cost), {name: fit.value(name) for name in SCALES}
        coefficients = {
            name: price * scales["decode_scale" if name in shared else "prefill_scale"]
            for name, price in self.base.coefficients.items()
        }
        host = replace(self.base.host(stack), slot_s=fit.value("slot_s"), request_s=fit.value("request_s"))
        return Calibration(
            coefficients,
            self.date,
            self._sha256(),
            len(self.observations.used),
            self._errors(),
            {**self.base.hosts, stack: host},
            self.base.clients,
            Evidence((*self._samples(), *self.base.evidence.samples)),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the report. It contains the calibration, which `--calibration` reads."""
        deployment = self.deployment
        return {
            "kind": "observed endpoint",
            "endpoint": self.label,
            "date": self.date,
            "model": deployment.model_name,
            "instance": deployment.instance.name,
            "tensor_parallel_size": deployment.tensor_parallel_size,
            "data_parallel_size": deployment.data_parallel_size,
            "max_model_len": deployment.max_model_len,
            "max_num_seqs": deployment.max_num_seqs,
            "stack": deployment.stack.name,
            "weight_dtype": deployment.weight_dtype,
            "base_calibration": self.base.version,
            "unknowns": [asdict(each) for each in self.fit.unknowns],
            "observations": [
                {**asdict(each.observation), "fitted_s": each.fitted_s, "unseen_s": each.unseen_s}
                for each in self.fit.residuals
            ],
            "left_out": list(self.observations.left_out),
            "calibration": self.calibration.as_dict(),
        }

    def _samples(self) -> list[Sample]:
        """Return a sample for each observation that the others predict."""
        cost = self.deployment.cost(self.base)
        return [
            Sample(
                cost.point(each.observation.phase, each.observation.slots, each.observation.positions),
                self.deployment.model_name,
                f"observed at {self.label}",
                each.observation.num_measured,
                each.observation.seconds / each.unseen_s,
            )
            for each in self.fit.residuals
            if each.unseen_s is not None
        ]

    def _errors(self) -> dict[str, GroupError]:
        groups: dict[str, list[Residual]] = {}
        for each in self.fit.residuals:
            groups.setdefault(f"observed_{each.observation.phase}", []).append(each)
        return {name: _group_error(residuals) for name, residuals in groups.items()}

    def _sha256(self) -> str:
        used = json.dumps([asdict(each) for each in self.observations.used], sort_keys=True)
        return sha256(f"{self.base.version} {used}".encode()).hexdigest()


def _group_error(residuals: list[Residual]) -> GroupError:
    measured = np.array([each.observation.seconds for each in residuals])
    fitted = np.array([each.fitted_s for each in residuals])
    unseen = [each.unseen_s / each.observation.seconds - 1 for each in residuals if each.unseen_s is not None]
    left_out = stats_of(np.array(unseen)) if unseen else None
    return GroupError(len(residuals), stats_of(fitted / measured - 1), {"observation": left_out})


def render(found: ObservedEndpoint) -> Group:
    """Return tables: the unknowns, and each observation beside the fit."""
    unknowns = Table("", "value", "standard error", "from", title=f"{found.label}: {found.deployment.stack.name}")
    for each in found.fit.unknowns:
        unit, factor = ("x", 1.0) if each.name in SCALES else ("ms", 1e3)
        error = "" if each.standard_error is None else f"{each.standard_error * factor:.2g} {unit}"
        origin = "observed" if not each.note else each.note
        unknowns.add_row(each.name.removesuffix("_s"), f"{each.value * factor:.4g} {unit}", error, origin)
    rows = Table("observation", "of", "measured ms", "fitted", "error", "error unseen", title="Observations")
    for one in found.fit.residuals:
        seconds = one.observation.seconds
        unseen = "" if one.unseen_s is None else f"{one.unseen_s / seconds - 1:+.1%}"
        figures = f"{seconds * 1e3:.2f}", f"{one.fitted_s * 1e3:.2f}", f"{one.fitted_s / seconds - 1:+.1%}", unseen
        rows.add_row(one.observation.name, str(one.observation.num_measured), *figures)
    return Group(unknowns, rows, *found.observations.left_out)
