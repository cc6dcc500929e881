"""Muon for the matrices inside the layers, AdamW for the rest. The caller scales learning rates each step.

Muon (Jordan et al. 2024): five Newton-Schulz iterations bring the momentum of each matrix near the closest orthogonal
matrix before it is applied. Matrices of one shape are iterated together.
"""

from __future__ import annotations

from typing import Any

import torch

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # the quintic's coefficients, from the paper


def orthogonalized(stack: Any, iterations: int = 5) -> Any:
    """Return a stack `[n, r, c]` of matrices with singular values near one."""
    a, b, c = NEWTON_SCHULZ
    x = stack.bfloat16()
    is_tall = x.shape[1] > x.shape[2]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if is_tall else x).float()


class Muon:
    """Momentum, orthogonalized, with decoupled weight decay."""

    def __init__(self, parameters: list[Any], lr: float, momentum: float = 0.95, weight_decay: float = 0.05) -> None:
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.groups: dict[tuple[int, ...], list[Any]] = {}
        for parameter in parameters:
            self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self.buffers = {shape: torch.zeros(len(ps), *shape) for shape, ps in self.groups.items()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, scale: float) -> None:
        for shape, parameters in self.groups.items():
            gradients = torch.stack([p.grad for p in parameters])
            buffer = self.buffers[shape]
            buffer.lerp_(gradients, 1 - self.momentum)
            update = orthogonalized(gradients.lerp(buffer, self.momentum))
            rate = self.lr * scale
            for parameter, delta in zip(parameters, update, strict=True):
                parameter.mul_(1 - rate * self.weight_decay)
                parameter.add_(delta, alpha=-rate * max(1.0, shape[0] / shape[1]) ** 0.5)

    def state_dict(self) -> dict[str, Any]:
        return {"buffers": list(self.buffers.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for buffer, saved in zip(self.buffers.values(), state["buffers"], strict=True):
            buffer.copy_(saved)


class Optimizer:
    """Both optimizers over one model."""

    def __init__(self, model: Any, muon_lr: float, adam_lr: float) -> None:
        matrices = [p for p in model.layers.parameters() if p.ndim == 2]
        inside = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in inside]
        self.model, self.adam_lr = model, adam_lr
        self.muon = Muon(matrices, muon_lr)
        self.adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)

    def step(self, scale: float) -> float:
        """Update once with both learning rates times `scale`, and clear gradients. Returns the gradient's norm."""
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.adam.step()
        self.muon.step(scale)
        self.model.zero_grad(set_to_none=False)
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
