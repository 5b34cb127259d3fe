"""Several processes as one: the only file that knows torch.distributed.

    torchrun -> join() -> World -> sets and rows of each process -> sums over the processes

Every process holds all weights and draws the same random numbers; it computes its share of the
label sets (`World.grid`) or of the rows of a batch (`Rows`), and what is added up is the same in
all of them. One process alone is a world of size one, in which nothing is divided or sent.
"""

import atexit
import contextlib
import importlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from mlnt.errors import InputError, first_line
from mlnt.launcher import launched, processes_here, rank_here, restarts

TIMEOUT_S = 600.0  # a process that has not answered for so long is lost


class ProcessLost(Exception):
    """Another process of this world has ended or does not answer; `advice` says what to do."""

    advice = ""


@dataclass(frozen=True, eq=False)
class Group:
    """Processes that divide something among them; by default this one alone."""

    rank: int = 0
    size: int = 1
    handle: Any = None  # of torch.distributed; None: all processes

    def part(self, total: int, rank: int | None = None) -> slice:
        """A process's share of `total` things in a row; shares differ by one at most."""
        rank = self.rank if rank is None else rank
        least, more = divmod(total, self.size)
        begin = rank * least + min(rank, more)
        return slice(begin, begin + least + (rank < more))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, the same in all; autograd may differentiate it, and twice."""
        return tensor if self.size == 1 else _Sum.apply(tensor, self)

    def stack(self, tensor: Tensor) -> Tensor:
        """[size, ...]: the tensors of all processes, which have one shape. Without gradient."""
        if self.size == 1:
            return tensor[None]
        tensor = tensor.detach().contiguous()
        parts = list(tensor.new_empty((self.size, *tensor.shape)).unbind())
        _call(dist.all_gather, parts, tensor, group=self.handle)
        return torch.stack(parts)

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over the processes of each tensor, sent as one; memory layouts stay."""
        if self.size == 1 or not tensors:
            return list(tensors)
        return _split(self.sum(_join(tensors)), tensors)

    def sum_named(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(tensors, self.sum_all(list(tensors.values())), strict=True))


@dataclass(frozen=True)
class Rows:
    """This process's rows of a batch of `total`; of WHOLE, all of them."""

    group: Group
    total: int = 0

    @property
    def is_whole(self) -> bool:
        return self.group.size == 1

    @property
    def own(self) -> slice:
        return slice(None) if self.is_whole else self.group.part(self.total)

    @property
    def share(self) -> float:
        """Own rows of all: the weight of a mean over own rows in the mean over the batch."""
        return 1.0 if self.is_whole else (self.own.stop - self.own.start) / self.total

    def take(self, inputs: Any) -> Any:
        """Own rows of a tensor, or of each in a tuple of arguments."""
        if self.is_whole:
            return inputs
        if isinstance(inputs, tuple):
            return tuple(self.take(value) for value in inputs)
        has_rows = isinstance(inputs, Tensor) and inputs.ndim and len(inputs) == self.total
        return inputs[self.own] if has_rows else inputs

    def gather(self, own: Tensor) -> Tensor:
        """All rows, from the own rows of every process; without gradient."""
        if self.is_whole:
            return own
        sizes = [_length(self.group.part(self.total, rank)) for rank in range(self.group.size)]
        padded = own.new_zeros((max(sizes), *own.shape[1:]))
        padded[: len(own)] = own.detach()
        parts = self.group.stack(padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


ALONE = Group()
WHOLE = Rows(ALONE)


@dataclass(frozen=True, eq=False)
class World(Group):
    """All processes of a training."""

    local_rank: int = 0
    local_size: int = 1  # processes on this machine
    divides_rows: bool = True  # a network whose rows depend on each other is computed whole
    divides_class: bool = True  # the class step too, where that pays
    draws: bool = False  # the network draws random numbers (dropout)
    store: Any = None
    grids: dict[tuple[int, int], Group] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """The first process alone writes and prints."""
        return self.rank == 0

    def rows(self, total: int) -> Rows:
        """A batch divided over all processes, where the network allows."""
        return self.divide(total) if self.divides_rows and self.divides_class else WHOLE

    def divide(self, total: int) -> Rows:
        """Samples that have nothing to do with each other, divided over all processes."""
        return Rows(self, total) if 1 < self.size <= total else WHOLE

    def grid(self, sets: int, batch: int) -> tuple[slice, Rows]:
        """(own label sets, own rows): up to as many processes as sets, each has all rows."""
        if self.size <= sets or not self.divides_rows or self.draws:
            return self.part(sets), WHOLE
        columns = most_columns(self.size, sets, batch)
        number = self.rank // (self.size // columns)
        own = Group(number, columns).part(sets)
        return own, Rows(self._columns(columns), batch)

    def _columns(self, columns: int) -> Group:
        """The processes that have the same sets as this one and divide the rows."""
        size = self.size // columns
        if columns == 1:
            return self
        if (columns, size) not in self.grids:
            for column in range(columns):  # all of them are made by all processes
                members = [_rank_of(self, column * size + place) for place in range(size)]
                handle = _call(dist.new_group, members) if size > 1 else None
                if self.rank // size == column:
                    self.grids[columns, size] = Group(self.rank % size, size, handle)
        return self.grids[columns, size]

    def from_leader(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The leader's values: what all computed alike may differ in the last digits."""
        if self.size == 1 or not tensors:
            return dict(tensors)
        given = list(tensors.values())
        joined = _join(given)
        _call(dist.broadcast, joined, src=_rank_of(self, 0), group=self.handle)
        return dict(zip(tensors, _split(joined, given), strict=True))

    @torch.no_grad()
    def match_(self, models: Mapping[str, torch.nn.Module]) -> None:
        """Give all processes the leader's weights and buffers."""
        if self.size == 1:
            return
        by_type: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, model in models.items():
            for key, value in model.state_dict().items():
                by_type.setdefault(value.dtype, {})[f"{name}.{key}"] = value
        for tensors in by_type.values():
            for value, leaders in zip(
                tensors.values(), self.from_leader(tensors).values(), strict=True
            ):
                value.copy_(leaders)

    def share_bytes(self, content: bytes) -> bytes:
        """What the leader has; the others' content is not looked at."""
        if self.size == 1:
            return content
        length = torch.tensor([len(content)])
        _call(dist.broadcast, length, src=_rank_of(self, 0), group=self.handle)
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.leads and content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        if len(buffer):
            _call(dist.broadcast, buffer, src=_rank_of(self, 0), group=self.handle)
        return buffer.numpy().tobytes()

    def share(self, value: Any) -> Any:
        """What the leader has, of what JSON can hold."""
        if self.size == 1:
            return value
        return json.loads(self.share_bytes(json.dumps(value).encode()))

    def gather_values(self, value: Any) -> list[Any]:
        """What each process has, of what JSON can hold."""
        if self.size == 1:
            return [value]
        content = json.dumps(value).encode()
        lengths = self.stack(torch.tensor([len(content)])).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        parts = self.stack(padded)
        return [
            json.loads(part[:length].numpy().tobytes())
            for part, length in zip(parts, lengths, strict=True)
        ]

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """The leader goes through the block before the others, such as to fetch files."""
        while self.size > 1 and not self.leads and not self.store.check(["fetched"]):
            if self.store.check(["ending"]):  # see `farewell`
                raise ProcessLost("the first process has ended")
            time.sleep(0.2)  # as long as it takes: no message would wait for a long download
        yield
        if self.size > 1 and self.leads:
            self.store.set("fetched", "1")

    @contextlib.contextmanager
    def own_numbers(self) -> Iterator[None]:
        """Random numbers of each process's own, for sets of its own; then all go on alike."""
        if self.size == 1 or not self.draws:
            yield
            return
        seed = int(torch.randint(2**62, ()))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + self.rank)
            yield

    def device_of(self, device: torch.device) -> torch.device:
        """This process's own GPU, where GPUs are asked for."""
        if self.size == 1 or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise InputError(f"several processes compute on cuda or cpu, not on {device.type}")
        there = torch.cuda.device_count()
        if device.index is not None or self.local_size > there:
            what = f"device cuda:{device.index}" if device.index is not None else f"{there} GPUs"
            raise InputError(
                f"{self.local_size} processes on a machine cannot share {what}; give each its own "
                "with --device cuda and --nproc-per-node, or --device cpu"
            )
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)


ALL_ALONE = World()


def most_columns(processes: int, sets: int, batch: int) -> int:
    """Into how many shares the sets go; each is computed by processes/columns that divide the rows.

    As many as can be: processes that divide sets agree once a step, those that divide rows in every
    batch norm.
    """
    fits = [
        columns
        for columns in range(1, min(processes, sets) + 1)
        if processes % columns == 0 and processes // columns <= batch
    ]
    if not fits:
        raise InputError(
            f"{processes} processes are more than the {sets} label sets times {batch} samples of "
            "a batch can be divided among; use fewer"
        )
    return max(fits)


class _Sum(Function):
    """y_r = Σ_s x_s in every process r; its adjoint is itself."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        _call(dist.all_reduce, total, group=group.handle)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Sum.apply(gradients[0], ctx.group), None


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _split(joined: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = [
        part.view(tensor.shape)
        for part, tensor in zip(joined.split([t.numel() for t in like]), like, strict=True)
    ]
    if joined.requires_grad:
        return parts
    # In the layout they came in: fused optimizers ask for that of the parameter.
    return [
        part if part.stride() == tensor.stride() else torch.empty_like(tensor).copy_(part)
        for part, tensor in zip(parts, like, strict=True)
    ]


def _length(part: slice) -> int:
    return part.stop - part.start


def _rank_of(group: Group, rank: int) -> int:
    """The number that torch.distributed knows a member by."""
    return rank if group.handle is None else dist.get_global_rank(group.handle, rank)


# --- beginning and end --------------------------------------------------------------------------


def join() -> World:
    """All processes that torchrun started; this one alone if it did not."""
    if _joined:
        return _joined[0]
    if not launched():
        return ALL_ALONE
    if dist.is_initialized():
        raise InputError(
            "this program has called torch.distributed.init_process_group itself, and training "
            "forms the group of its processes on its own; leave that call out (the group stays for "
            "you to use), start the training apart (torchrun -m mlnt train), or use "
            "mlnt.NoiseTolerance, which works in any group"
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    # Loaded later, it would keep the group of all as a default argument: see `leave`.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        timeout = timedelta(seconds=TIMEOUT_S)
        found, rank, size = next(dist.rendezvous("env://", timeout=timeout))
        # torchrun's store may outlive a restart: what those before have left must not be found.
        store = dist.PrefixStore(f"start-{restarts()}", found)
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise InputError(f"the processes cannot reach each other: {reason}") from None
    world = World(
        rank,
        size,
        local_rank=rank_here(),
        local_size=processes_here(),
        store=store,
    )
    world.store.set(f"process/{world.rank}", f"{socket.gethostname()} {os.getpid()}")
    if not world.leads:
        logging.getLogger("mlnt").setLevel(logging.CRITICAL)
    _joined.append(world)
    atexit.register(leave)
    return world


_joined: list[World] = []


def replicas_of(model: torch.nn.Module) -> Group:
    """The processes that DistributedDataParallel gives copies of a model, each its own batches."""
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return Group()
    handle = model.process_group
    return Group(dist.get_rank(handle), dist.get_world_size(handle), handle)


def leave() -> None:
    """End the threads that send, which live as long as anybody holds a group.

    One that still lets go of a tensor when the interpreter is gone aborts the process.
    """
    for world in _joined:
        world.grids.clear()
    with contextlib.suppress(RuntimeError, ValueError, AssertionError):
        dist.destroy_process_group()


def _call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        raise ProcessLost(first_line(error)) from None
