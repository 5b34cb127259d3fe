"""Pictures streamed from disk: decoded ahead by other processes, never all in memory.

    order of indices (this process) -> workers: read, crop -> uint8 -> device: normalise, augment

The order is always this process's, so that a run is the same whatever the number of workers.

Axes: B batch.
"""

import atexit
import ctypes
import os
import signal
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from mlnt.data.image_files import Fed, ImageFiles, Read, fill_in
from mlnt.distributed import ALL_ALONE, Rows, World
from mlnt.errors import InputError, TrainingError
from mlnt.launcher import processes_here

STREAMED_BATCH = 64  # most pictures at once in evaluation: 1,024 of 224 × 224 would be 154 MB
LARGE = 512  # pixels; of crops larger than that fewer at once
AHEAD = 2  # batches that each worker keeps ready
HOST_AHEAD = 8  # batches that this process may be ahead of the GPU
MOST_WORKERS = 8


class Feeder:
    """Batches of pictures, read ahead in the order that is given.

    feeder = Feeder(files, batch_size)
    feeder.feed(order)                       # an epoch's batches of indices
    for _ in order: feeder.next().pixels     # uint8 [B, 3, H, W]
    """

    def __init__(
        self,
        files: ImageFiles,
        batch_size: int,
        workers: int | None = None,
        blank: bool = False,
        world: World = ALL_ALONE,
    ) -> None:
        """`blank`: what cannot be read becomes an empty picture, not another of the batch. Each
        process of the world reads its part of every batch, and gets all of it."""
        self.files, self.world = files, world
        if workers is None:
            workers = files.workers
        if workers is None:
            workers = default_workers(3 * files.crop**2 * batch_size)
        self.workers = workers
        self.waiting = Waiting(files.device)
        self.order = _Order()
        self._began = self._last = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more workers than cores: it was asked for
            self._loader: DataLoader | None = DataLoader(
                files.reader(blank, is_part=world.size > 1),
                batch_size=None,  # the order's items are batches already
                sampler=self.order,
                num_workers=workers,
                collate_fn=_as_it_is,
                pin_memory=files.device.type == "cuda",
                worker_init_fn=_begin_worker,
                multiprocessing_context=_context() if workers else None,
                # Its own: else the loader draws from the process's, and changes the run.
                generator=torch.Generator(),
                prefetch_factor=AHEAD if workers else None,
                persistent_workers=workers > 0,
            )
        self._batches: Iterator[Read] = iter(())
        _open.add(self)

    def feed(self, order: Iterable[Tensor]) -> None:
        """Begin to read: the indices [B] of each batch, on the CPU. Times begin anew."""
        if self._loader is None:
            raise RuntimeError("this feeder is closed")
        self.order.batches = (self._rows(len(batch)).take(batch) for batch in order)
        self.sizes = [len(batch) for batch in order] if self.world.size > 1 else []
        self.waiting.reset()
        self._began = self._last = time.perf_counter()
        with warnings.catch_warnings():
            # Of more workers than cores again, and Python 3.12 of threads when a process forks:
            # workers use none of them.
            warnings.simplefilter("ignore")
            self._batches = iter(self._loader)

    def next(self) -> Fed:
        """The next batch of the order; StopIteration when it is used up."""
        with self.waiting:
            read = self._receive()
        self._last = time.perf_counter()
        fed = self.files.accept(read)
        return fed if self.world.size == 1 else self._put_together(fed)

    def _rows(self, total: int) -> Rows:
        return self.world.divide(total)

    def _put_together(self, own: Fed) -> Fed:
        """The whole batch, from the parts that the processes have read."""
        rows = self._rows(self.sizes.pop(0))
        fed = fill_in(Fed(rows.gather(own.indices), rows.gather(own.pixels)))
        if fed is None:
            raise InputError(
                "none of the pictures of a batch can be read; look at the whole tree with "
                "`mlnt data check`"
            )
        return fed

    def _receive(self) -> Read:
        try:
            return next(self._batches)
        except RuntimeError as error:  # the loader's, when a worker is gone
            reason = str(error).split("\n", 1)[0].strip()
            raise TrainingError(
                f"a process that reads pictures ended ({reason}); was there memory enough? "
                f"{self.workers} worked, try fewer"
            ) from None

    @property
    def waited_s(self) -> float:
        """Seconds the device stood still for want of a batch, since `feed`."""
        return self.waiting.seconds()

    @property
    def elapsed_s(self) -> float:
        """Seconds from `feed` to the batch that came last."""
        return self._last - self._began

    @property
    def waiting_share(self) -> float:
        return self.waited_s / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def close(self) -> None:
        """End the workers, though frames of an error may hold the loader, which waits for them."""
        loading: Any = self._batches
        self._batches, self._loader = iter(()), None
        if hasattr(loading, "_shutdown_workers"):  # not where this process reads
            loading._shutdown_workers()
            for worker in loading._workers:
                if worker.is_alive():  # a disk may not answer, and SIGTERM is ignored
                    worker.kill()

    def __enter__(self) -> "Feeder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_open: "weakref.WeakSet[Feeder]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before multiprocessing's own hook, registered first and called last, which sends workers a
    SIGTERM, which they ignore, and waits for them without end."""
    for feeder in list(_open):
        feeder.close()


class Waiting:
    """Time that the device stood still for want of data.

    This process runs ahead of a GPU: it may wait while the GPU has work left. There the time
    counts between two events, one behind all work given so far, one when the batch has come.
    """

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.reset()

    def reset(self) -> None:
        self.total = 0.0
        self.pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        self.began: Any = self._now()

    def __exit__(self, *exception: object) -> None:
        if not self.on_gpu:
            self.total += self._now() - self.began
            return
        self.pending.append((self.began, self._now()))
        if len(self.pending) > HOST_AHEAD:
            # Waits for the GPU: without it batches, pinned in memory, would queue without end.
            self._settle()

    def seconds(self) -> float:
        while self.pending:  # waits for the GPU
            self._settle()
        return self.total

    def _now(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _settle(self) -> None:
        began, ended = self.pending.popleft()
        ended.synchronize()
        self.total += began.elapsed_time(ended) / 1000


def batches(
    inputs: Tensor | ImageFiles,
    size: int,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Generator[Tensor, None, None]:
    """The inputs in order, in batches of at most `size`, normalised; on `device` if given.

    To be closed, lest an error between two batches leave the workers waiting.
    """
    if isinstance(inputs, Tensor):
        for part in inputs.split(size):
            yield part.to(device or part.device, dtype or part.dtype)
        return
    files = inputs.to(device or inputs.device, dtype)
    size = min(size, max(1, STREAMED_BATCH * LARGE**2 // max(LARGE, files.crop) ** 2))
    with Feeder(files, size, blank=True) as feeder:
        order = torch.arange(len(files)).split(size)
        feeder.feed(order)
        for _ in order:
            yield files.normalise(feeder.next().pixels)


def first_of(inputs: Tensor | ImageFiles, count: int) -> Tensor:
    """The first few inputs, normalised."""
    if isinstance(inputs, Tensor):
        return inputs[:count]
    first = inputs[:count]
    return first.normalise(first.load(torch.arange(len(first))))


def default_workers(batch_bytes: int = 0) -> int:
    """A core stays for each process, and what the workers keep ready fits into shared memory."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        cores = os.cpu_count() or 1
    workers = min(MOST_WORKERS, max(0, cores // processes_here() - 1))
    try:
        room = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return workers
    # In a container it is often 64 MB: a worker would die of a bus error there.
    free = room.f_bavail * room.f_frsize // 2 // processes_here()
    return min(workers, free // ((AHEAD + 1) * batch_bytes)) if batch_bytes else workers


class _Order:
    """The batches of indices of one epoch, as the loader asks for them."""

    def __init__(self) -> None:
        self.batches: Iterable[Tensor] = ()

    def __iter__(self) -> Iterator[np.ndarray]:
        return (batch.cpu().numpy() for batch in self.batches)


def _as_it_is(read: Any) -> Any:
    return read


def _context() -> str | None:
    """Forked workers start at once, share the paths and do not run the user's script again."""
    return "fork" if sys.platform == "linux" else None  # elsewhere forks are not safe


def _begin_worker(number: int) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is this worker's parent's business
    if sys.platform == "linux":
        die_with_parent = 1  # PR_SET_PDEATHSIG; a killed run leaves nobody who holds the GPU open
        ctypes.CDLL(None).prctl(die_with_parent, signal.SIGKILL)
        # Nor is a SIGTERM that a scheduler sends to all: the parent still wants its batch.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
