"""Running a capture as a graph of plain ATen ops, and the same step in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from piper.frontend import Capture, Role
from torch import Tensor, nn

Step = tuple[Tensor, dict[str, Tensor]]


def run_capture(captured: Capture, model: nn.Module, batch: Mapping[str, Tensor]) -> Step:
    """Run the capture on every microbatch of every rank; return the loss and summed gradients by
    state.
    """
    parts = captured.microbatches * captured.data_shards
    module = captured.module()

    def run(part: int, scales: Mapping[str, float]) -> tuple[Any, Any, Any]:
        arguments = _arguments(captured, model, batch, part, scales)
        with torch.no_grad():
            result: tuple[Any, Any, Any] = module(*arguments)
        return result

    counted = [spec.name for spec in captured.losses if spec.count is not None]
    totals = dict.fromkeys(counted, 0)
    for part in range(parts):
        _, counts, _ = run(part, {spec.name: 1.0 for spec in captured.losses})
        for name, count in zip(counted, counts, strict=True):
            totals[name] += int(count)
    scales = {spec.name: spec.coeff / max(1, totals.get(spec.name, 1)) for spec in captured.losses}
    loss = torch.zeros((), dtype=torch.float64)
    gradients: dict[str, Tensor] = {}
    for part in range(parts):
        values, _, contributions = run(part, scales)
        for value, scale in zip(values, scales.values(), strict=True):
            loss += value * scale
        for contribution, value in zip(captured.gradients, contributions, strict=True):
            name = contribution.state
            gradients[name] = gradients[name] + value if name in gradients else value
    return loss, gradients


def _arguments(
    captured: Capture,
    model: nn.Module,
    batch: Mapping[str, Tensor],
    part: int,
    scales: Mapping[str, float],
) -> list[Tensor]:
    """Return the tensors of one microbatch in placeholder order."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    tensors |= {spec.name: spec.value for spec in captured.states if spec.value is not None}
    dims = {spec.name: spec.dim for spec in captured.inputs}
    parts = captured.microbatches * captured.data_shards
    dtypes = {spec.name: spec.value.meta["val"].dtype for spec in captured.losses}

    def feed(role: Role) -> Tensor:
        if role.kind == "tangent":
            return torch.tensor(scales[role.name], dtype=dtypes[role.name])
        if role.kind == "state":
            return tensors[role.name].detach()
        dim = dims[role.name]
        whole = batch[role.name]
        return whole if dim is None else whole.tensor_split(parts, dim=dim)[part].contiguous()

    return [feed(role) for role in captured.placeholders()]


def run_eager(model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], batch: Any) -> Step:
    """Return loss and gradients of the whole batch in plain PyTorch."""
    model.zero_grad()
    loss = loss_fn(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients


def difference(got: Step, expected: Step) -> float:
    """Return the largest absolute difference over max(1, largest expected value), of loss and all
    gradients.
    """
    assert got[1].keys() == expected[1].keys()
    pairs = [(got[0], expected[0]), *((got[1][name], value) for name, value in expected[1].items())]
    return max(float((a - b).abs().max() / max(1.0, float(b.abs().max()))) for a, b in pairs)
