"""Steps of a method on batches drawn on the device; on a GPU each step is one CUDA graph.

    rates of an epoch -> for each step: draw, augment, step -> losses of the epoch

The first steps run eagerly, which lets the libraries settle on their kernels; then one step is
recorded and played back for all that follow. Nothing in an epoch waits for the GPU: the rates lie
on the device before it begins, and its losses are read after it.

Axes: B batch.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mlnt.config import Settings
from mlnt.data.batches import Augmentation, Batch, Shuffled
from mlnt.data.sources import Split
from mlnt.device import computing, record
from mlnt.methods.base import Method, Rates

EAGER_STEPS = 3
ROOM = 512  # steps whose rates and losses fit at first

log = logging.getLogger("mlnt")


class Steps:
    """`kept` are the samples the class loss may draw from, if not all."""

    def __init__(
        self,
        train: Split,
        method: Method,
        settings: Settings,
        generator: torch.Generator,
        kept: Tensor | None = None,
    ) -> None:
        self.train, self.method, self.settings = train, method, settings
        self.generator = generator
        self.device = train.labels.device
        images = train.inputs.ndim == 4
        self.augmentation = Augmentation(
            settings.crop_padding if images else 0, settings.flip and images
        )
        everything = torch.arange(len(train), device=self.device)
        self.stream = Shuffled(everything, settings.batch_size, generator)
        self.class_stream = None
        if kept is not None:
            self.class_stream = Shuffled(kept, settings.batch_size, generator)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.may_record = settings.graph and self.device.type == "cuda"
        self.eager_steps = 0
        self.outputs: dict[str, Tensor] = {}  # of the recorded step
        if self.device.type == "cuda":
            for model in method.models.values():
                _channels_last_(model)
            # Scalars on the device: the recorded step reads its rates and its number from here.
            self.number = torch.zeros(1, dtype=torch.long, device=self.device)
            self.rates = torch.zeros(0, 4, device=self.device)
            self.losses = torch.zeros(0, 0, device=self.device)

    def run(
        self, rates: Sequence[Rates], after_step: Callable[[], None] = lambda: None
    ) -> dict[str, Tensor]:
        """One step for each of the rates; the losses of all of them, [steps], on the device."""
        with computing(self.settings, self.device):
            if self.device.type == "cuda":
                return self._run_on_gpu(rates, after_step)
            found: list[dict[str, Tensor]] = []
            for step_rates in rates:
                self._advance()
                found.append(self._step(step_rates))
                after_step()
            return {name: torch.stack([step[name] for step in found]) for name in found[0]}

    def state(self) -> dict[str, Any]:
        """All that decides the steps to come: a new `Steps` that loads it goes on alike."""
        return copy.deepcopy(
            {
                "models": {name: m.state_dict() for name, m in self.method.models.items()},
                "optimizer": self.method.optimizer.state_dict(),
                "streams": [stream.state() for stream in self._streams()],
                "generator": self.generator.get_state(),
                "default": torch.get_rng_state(),
                "default_cuda": _cuda_state(self.device),
            }
        )

    def load_state(self, state: dict[str, Any]) -> None:
        for name, model in self.method.models.items():
            model.load_state_dict(state["models"][name])
        self.method.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for stream, of_stream in zip(self._streams(), state["streams"], strict=True):
            stream.load_state(of_stream)
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["default"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["default_cuda"], self.device)
        # The optimizer's tensors are new ones: what was recorded knows only the old.
        self.graph, self.eager_steps = None, 0

    def _streams(self) -> list[Shuffled]:
        return [s for s in (self.stream, self.class_stream) if s is not None]

    def _run_on_gpu(
        self, rates: Sequence[Rates], after_step: Callable[[], None]
    ) -> dict[str, Tensor]:
        self._load(rates)
        for _ in rates:
            self._advance()
            if self.graph is None and self.may_record and self.eager_steps >= EAGER_STEPS:
                self._record()
            if self.graph is None:
                self.eager_steps += 1
                self._step_on_device()
            else:
                self.graph.replay()
            after_step()
        return {
            name: self.losses[row, : len(rates)].clone() for row, name in enumerate(self.outputs)
        }

    def _load(self, rates: Sequence[Rates]) -> None:
        table = torch.tensor([[r.lr, r.eta, r.gamma, r.lam] for r in rates])
        if len(table) > len(self.rates):
            # A recorded step holds the addresses of these; longer ones need a new recording.
            self.graph = None
            room = max(ROOM, len(table))
            self.rates = torch.zeros(room, 4, device=self.device)
            self.losses = torch.zeros(8, room, device=self.device)
        self.rates[: len(table)] = table.pin_memory().to(self.device, non_blocking=True)
        self.number.zero_()

    def _advance(self) -> None:
        for stream in self._streams():
            stream.advance()

    def _step(self, rates: Rates) -> dict[str, Tensor]:
        batch = self._batch(self.stream.take())
        class_batch = batch
        if self.class_stream is not None:
            class_batch = self._batch(self.class_stream.take())
        return self.method.step(batch, class_batch, rates)

    def _batch(self, indices_B: Tensor) -> Batch:
        inputs = self.augmentation(self.train.inputs[indices_B], self.generator)
        return Batch(indices_B, inputs, self.train.labels[indices_B])

    def _step_on_device(self) -> None:
        lr, eta, gamma, lam = self.rates[self.number].squeeze(0).unbind()
        self.outputs = self._step(Rates(lr, eta, gamma, lam))
        values = torch.stack([value.float() for value in self.outputs.values()])
        self.losses[: len(values)].index_copy_(1, self.number, values[:, None])
        self.number += 1

    def _record(self) -> None:
        """Record one step; where that fails, steps go on eagerly."""
        try:
            self.graph = record(self._step_on_device, self.device, [self.generator])
        except Exception as error:
            self.may_record = False
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            log.warning("the step cannot be recorded as a CUDA graph (%s); it runs eagerly", reason)


def _channels_last_(model: torch.nn.Module) -> None:
    """Weights of convolutions as the fast kernels want them."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _cuda_state(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None
