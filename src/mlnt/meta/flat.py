"""Many parameters as views of a few long vectors, so that what is done to all is done at once.

A network has a hundred parameters; a hundred small kernels cost more than the arithmetic.

Axes: M models.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class Layout:
    """Where the M copies of each parameter lie: parameter by parameter, then model by model.

    Weights of convolutions lie with their channels last, as the fast kernels want them.
    """

    def __init__(self, parameters: Mapping[str, Tensor], models: int) -> None:
        self.models = models
        self.shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.sizes = {name: models * p.numel() for name, p in parameters.items()}

    def join(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One vector of tensors that are each [M·shape[0], ...] or [M, *shape]."""
        return torch.cat([self._to_memory(name, tensors[name]) for name in self.shapes])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """[M·shape[0], *shape[1:]] of every parameter."""
        parts = vector.split(list(self.sizes.values()))
        return {
            name: self._from_memory(name, part)
            for name, part in zip(self.shapes, parts, strict=True)
        }

    def of_model(self, views: Mapping[str, Tensor], number: int) -> list[Tensor]:
        """The parameters of one model."""
        return [
            views[name].unflatten(0, (self.models, -1))[number].view(shape)
            for name, shape in self.shapes.items()
        ]

    def repeat(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """M copies of every parameter, in one vector."""
        first = next(iter(parameters.values()))
        vector = first.new_empty(sum(self.sizes.values()))
        views = self.views(vector)
        sources = [parameters[name].detach() for name in self.shapes]
        for number in range(self.models):
            torch._foreach_copy_(self.of_model(views, number), sources)
        return vector

    def sum_over_models(self, vector: Tensor) -> dict[str, Tensor]:
        """Each parameter's M copies added up, model by model."""
        views = self.views(vector)
        totals = self.of_model(views, 0)
        for number in range(1, self.models):
            totals = list(torch._foreach_add(totals, self.of_model(views, number)))
        return dict(zip(self.shapes, totals, strict=True))

    def _to_memory(self, name: str, tensor: Tensor) -> Tensor:
        shape = self.shapes[name]
        if len(shape) == 4:
            return tensor.reshape(-1, *shape[1:]).permute(0, 2, 3, 1).reshape(-1)
        return tensor.reshape(-1)

    def _from_memory(self, name: str, part: Tensor) -> Tensor:
        shape = self.shapes[name]
        if len(shape) == 4:
            outputs, channels, height, width = shape
            whole = part.view(self.models * outputs, height, width, channels)
            return whole.permute(0, 3, 1, 2)
        if not shape:
            return part
        return part.view(self.models * shape[0], *shape[1:])


def split_by_rank(parameters: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(matrices, vectors): the former are computed with in low precision, the latter never."""
    matrices = {name: p for name, p in parameters.items() if p.ndim > 1}
    vectors = {name: p for name, p in parameters.items() if p.ndim <= 1}
    return matrices, vectors


def merge(order: Iterable[str], *parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One mapping in the order of `order`."""
    whole = {name: tensor for part in parts for name, tensor in part.items()}
    return {name: whole[name] for name in order if name in whole}
