"""Steps of a method on batches drawn on the device; on a GPU each step is one CUDA graph.

    rates of an epoch -> for each step: draw, augment, step -> losses of the epoch

The first steps run eagerly, which lets the libraries settle on their kernels; then one step is
recorded and played back for all that follow. Nothing in an epoch waits for the GPU: the rates lie
on the device before it begins, and its losses are read after it. The host only stays within a few
steps of the GPU, so that a clock or a signal it obeys is obeyed in time.

Axes: B batch.
"""

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mlnt.config import Settings
from mlnt.data.batches import Augmentation, Batch, Shuffled
from mlnt.data.dataset import Split
from mlnt.data.image_files import ImageFiles
from mlnt.data.streaming import Feeder, first_of
from mlnt.device import computing, record
from mlnt.distributed import ALL_ALONE, World
from mlnt.errors import InputError, first_line
from mlnt.meta.division import division_for
from mlnt.meta.teacher import renew_statistics
from mlnt.methods.base import Method, Rates

EAGER_STEPS = 3
ROOM = 512  # steps whose rates and losses fit at first
HOST_AHEAD = 32  # steps that this process may be ahead of the GPU
# Samples that a teacher's batch norms go by; fewer where each has to be read from disk once more.
STATISTICS, STREAMED_STATISTICS, STATISTICS_BATCH = 4096, 1024, 1024

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
        world: World = ALL_ALONE,
    ) -> None:
        self.train, self.method, self.settings = train, method, settings
        self.generator, self.world = generator, world
        self.device = train.labels.device
        self.augmentation = Augmentation.of(settings, train.inputs)
        everything = torch.arange(len(train), device=self.device)
        self.stream = Shuffled(everything, settings.batch_size, generator)
        self.class_stream = None
        if kept is not None:
            self.class_stream = Shuffled(kept, settings.batch_size, generator)
        self.feeder: Feeder | None = None
        # Indices and pixels of each stream's batch, where a recorded step finds them.
        self.arrived: list[tuple[Tensor, Tensor]] = []
        if isinstance(train.inputs, ImageFiles):
            self.feeder = Feeder(train.inputs, settings.batch_size, world=world)
            for stream in self._streams():
                shape = (stream.batch_size, *train.inputs.shape[1:])
                pixels = torch.empty(shape, dtype=torch.uint8, device=self.device)
                self.arrived.append((torch.empty_like(stream.place_B), pixels))
        self.done = 0  # steps of the epoch under way
        self.found: list[dict[str, Tensor]] = []  # their losses, on a CPU
        self.earlier: dict[str, Tensor] = {}  # those of an epoch's steps before a state was loaded
        self.ahead: deque[Tensor] = deque()  # of pictures: batches of the epoch still to come
        self.graph: torch.cuda.CUDAGraph | None = None
        self.may_record = (
            settings.graph and not settings.deterministic and self.device.type == "cuda"
        )
        self.eager_steps = 0
        self.outputs: dict[str, Tensor] = {}  # of the recorded step
        if self.device.type == "cuda":
            for model in method.models.values():
                _channels_last_(model)
            # Scalars on the device: the recorded step reads its rates and its number from here.
            self.number = torch.zeros(1, dtype=torch.long, device=self.device)
            self.rates = torch.zeros(0, 4, device=self.device)
            self.table = torch.zeros(0, 0, device=self.device)  # of losses
            self.under_way: deque[torch.cuda.Event] = deque()  # one behind each step given

        if world.size > 1:
            world.match_(method.models)
            some = first_of(train.inputs, min(settings.batch_size, len(train)))
            method.join(division_for(world, method.models["student"], some))

    def run(
        self, rates: Sequence[Rates], after_step: Callable[[], None] = lambda: None
    ) -> dict[str, Tensor]:
        """An epoch: a step for each of the rates; the losses of all of them, [steps].

        Where `after_step` raises, or a state was loaded, the epoch is under way, and the next call
        does the steps that are left of it.
        """
        with computing(self.settings, self.device):
            self.earlier, self.found = self.losses(), []
            self._draw_ahead(len(rates))
            left = rates[self.done :]
            on_gpu = self.device.type == "cuda"
            if on_gpu and left:
                self._load(left)
            step = self._step_on_gpu if on_gpu else self._step_on_cpu
            for step_rates in left:
                self._advance()
                step(step_rates)
                self.done += 1
                after_step()
            losses = self.losses()
        self.done, self.earlier, self.found = 0, {}, []
        return losses

    def losses(self) -> dict[str, Tensor]:
        """Of the steps of this epoch so far, [done], on the device."""
        count = self.done - _length(self.earlier)
        if count == 0:
            return self.earlier
        if self.device.type == "cuda":
            now = {name: self.table[row, :count].clone() for row, name in enumerate(self.outputs)}
        else:
            now = {name: torch.stack([step[name] for step in self.found]) for name in self.found[0]}
        if not self.earlier:
            return now
        return {name: torch.cat([self.earlier[name], values]) for name, values in now.items()}

    def renew_teacher(self) -> None:
        """Batch-norm statistics of a teacher that has none which belong to its weights.

        Nobody asks it, or it gives its targets of whole images, while its weights come from a
        student that learns from images with blanked squares.
        """
        teacher = self.method.models.get("teacher")
        has_own = self.method.teacher_answers and self.augmentation.cutout == 0
        if teacher is None or has_own:
            return
        learnt = self._streams()[-1].indices_N
        order = torch.randperm(len(learnt), generator=self.generator, device=self.generator.device)
        student = self.method.models["student"].train()
        with computing(self.settings, self.device):
            some = self._some_of(learnt[order.to(learnt.device)])
            augmented = (self.augmentation(inputs, self.generator) for inputs in some)
            renew_statistics(teacher, student, augmented)

    def _some_of(self, samples: Tensor) -> Iterator[Tensor]:
        """The inputs of the first few thousand samples, in batches of one size."""

        def batches(most: int, size: int) -> tuple[Tensor, ...]:
            most, size = min(most, len(samples)), min(size, len(samples))
            return samples[: max(1, most // size) * size].split(size)

        inputs = self.train.inputs
        if not isinstance(inputs, ImageFiles):
            yield from (inputs[indices_B] for indices_B in batches(STATISTICS, STATISTICS_BATCH))
            return
        assert self.feeder is not None
        order = [
            indices_B.cpu() for indices_B in batches(STREAMED_STATISTICS, self.stream.batch_size)
        ]
        self.feeder.feed(order)
        for _ in order:
            yield inputs.normalise(self.feeder.next().pixels)

    def share_faults(self) -> None:
        """Of pictures that are streamed: what one process could not read is known to all."""
        if isinstance(self.train.inputs, ImageFiles):
            self.train.inputs.faults.share(self.world)

    def waiting(self) -> dict[str, float]:
        """Of streamed pictures: the share of the epoch's time that the device waited for them."""
        return {} if self.feeder is None else {"waiting_share": self.feeder.waiting_share}

    def close(self) -> None:
        """End the processes that read pictures."""
        if self.feeder is not None:
            self.feeder.close()

    def state(self) -> dict[str, Any]:
        """All that decides the steps to come: a new `Steps` that loads it goes on alike.

        As it is at this moment: the next step changes it, as it does a `state_dict`.
        """
        return {
            "device": self.device.type,
            "models": {name: m.state_dict() for name, m in self.method.models.items()},
            "optimizer": self.method.optimizer.state_dict(),
            "tensors": self.method.tensors(),
            "epoch": self._epoch_state(),
            "streams": [stream.state() for stream in self._streams()],
            "generator": self.generator.get_state(),
            "default": torch.get_rng_state(),
            "default_cuda": _cuda_state(self.device),
            "unreadable": self._unreadable(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        if state["device"] != self.device.type:
            # Its random numbers cannot be drawn on.
            was, now = state["device"], self.device.type
            raise InputError(f"this run was begun on {was}, not {now}; give --device {was}")
        for name, model in self.method.models.items():
            model.load_state_dict(state["models"][name])
        self.method.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for parameter, kept in self.method.optimizer.state.items():
            for name, value in kept.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    # In the parameter's memory layout, which files do not keep and fused SGD wants.
                    kept[name] = torch.empty_like(parameter).copy_(value)
        saved = state["tensors"]
        if self.method.class_weights is not None and "class_weights" not in saved:
            # A checkpoint from before there were any: all labels counted alike.
            saved = {**saved, "class_weights": torch.ones_like(self.method.class_weights)}
        for name, tensor in self.method.tensors().items():
            tensor.detach().copy_(saved[name])
        for stream, of_stream in zip(self._streams(), state["streams"], strict=True):
            stream.load_state(of_stream)
        self._load_epoch_state(state["epoch"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["default"])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["default_cuda"], self.device)
        if isinstance(self.train.inputs, ImageFiles):
            # Not in checkpoints from before it was kept.
            self.train.inputs.faults.record(state.get("unreadable", {}).items())
        # The optimizer's tensors are new ones: what was recorded knows only the old.
        self.graph, self.eager_steps = None, 0

    @property
    def kept(self) -> Tensor | None:
        """The samples that the class loss draws from, if not all."""
        return None if self.class_stream is None else self.class_stream.indices_N

    def _unreadable(self) -> dict[str, str]:
        """Pictures of all splits that could not be read so far, and why."""
        inputs = self.train.inputs
        return dict(inputs.faults.found) if isinstance(inputs, ImageFiles) else {}

    def _streams(self) -> list[Shuffled]:
        return [s for s in (self.stream, self.class_stream) if s is not None]

    def _epoch_state(self) -> dict[str, Any]:
        """Of the epoch under way: steps done, their losses, what the rest of it will be fed."""
        ahead = torch.cat(list(self.ahead)) if self.ahead else None
        return {"done": self.done, "losses": self.losses(), "ahead": ahead}

    def _load_epoch_state(self, state: dict[str, Any]) -> None:
        self.done, self.found, self.ahead = state["done"], [], deque()
        self.earlier = {name: value.to(self.device) for name, value in state["losses"].items()}
        if state["ahead"] is not None:
            sizes = [stream.batch_size for stream in self._streams()]
            steps = len(state["ahead"]) // sum(sizes)
            self.ahead.extend(state["ahead"].split(sizes * steps))

    def _step_on_cpu(self, rates: Rates) -> None:
        self.found.append(self._step(rates))

    def _step_on_gpu(self, rates: Rates) -> None:
        """The rates are on the device already."""
        if self.graph is None and self.may_record and self.eager_steps >= EAGER_STEPS:
            self._record()
        if self.graph is None:
            self.eager_steps += 1
            self._step_on_device()
        else:
            self.graph.replay()
        behind = torch.cuda.Event()
        behind.record()
        self.under_way.append(behind)
        if len(self.under_way) > HOST_AHEAD:
            self.under_way.popleft().synchronize()

    def _load(self, rates: Sequence[Rates]) -> None:
        table = torch.tensor([[r.lr, r.eta, r.gamma, r.lam] for r in rates])
        if len(table) > len(self.rates):
            # A recorded step holds the addresses of these; longer ones need a new recording.
            self.graph = None
            room = max(ROOM, len(table))
            self.rates = torch.zeros(room, 4, device=self.device)
            self.table = torch.zeros(8, room, device=self.device)
        self.rates[: len(table)] = table.pin_memory().to(self.device, non_blocking=True)
        self.number.zero_()

    def _draw_ahead(self, steps: int) -> None:
        """An epoch's batches at once where pictures are streamed: workers must know them before."""
        if self.feeder is None:
            return
        if self.done == 0:
            drawn = []
            for _ in range(steps):
                for stream in self._streams():
                    stream.advance()
                    drawn.append(stream.take())
            # One wait for the GPU.
            sizes = [len(indices_B) for indices_B in drawn]
            self.ahead = deque(torch.cat(drawn).cpu().split(sizes))
        self.feeder.feed(list(self.ahead))

    def _advance(self) -> None:
        if self.feeder is None:
            for stream in self._streams():
                stream.advance()
            return
        for indices_B, pixels in self.arrived:
            fed = self.feeder.next()
            self.ahead.popleft()
            indices_B.copy_(fed.indices, non_blocking=True)
            pixels.copy_(fed.pixels, non_blocking=True)

    def _step(self, rates: Rates) -> dict[str, Tensor]:
        batch = self._batch(0)
        class_batch = batch if self.class_stream is None else self._batch(1)
        return self.method.step(batch, class_batch, rates)

    def _batch(self, number: int) -> Batch:
        """The next batch of the stream of this number."""
        if isinstance(self.train.inputs, ImageFiles):
            indices_B, pixels = self.arrived[number]
            inputs = self.train.inputs.normalise(pixels)
        else:
            indices_B = self._streams()[number].take()
            inputs = self.train.inputs[indices_B]
        moved = self.augmentation.move(inputs, self.generator)
        blanked = self.augmentation.blank(moved, self.generator)
        return Batch(indices_B, blanked, self.train.labels[indices_B], moved)

    def _step_on_device(self) -> None:
        lr, eta, gamma, lam = self.rates[self.number].squeeze(0).unbind()
        self.outputs = self._step(Rates(lr, eta, gamma, lam))
        values = torch.stack([value.float() for value in self.outputs.values()])
        self.table[: len(values)].index_copy_(1, self.number, values[:, None])
        self.number += 1

    def _record(self) -> None:
        """Record one step; where that fails, steps go on eagerly."""
        try:
            self.graph = record(self._step_on_device, self.device, [self.generator])
        except Exception as error:
            self.may_record = False
            reason = first_line(error)
            log.warning("the step cannot be recorded as a CUDA graph (%s); it runs eagerly", reason)


def _channels_last_(model: torch.nn.Module) -> None:
    """Weights of convolutions as the fast kernels want them."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _length(losses: dict[str, Tensor]) -> int:
    return len(next(iter(losses.values()))) if losses else 0


def _cuda_state(device: torch.device) -> Tensor | None:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else None
