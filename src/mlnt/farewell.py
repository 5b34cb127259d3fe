"""How several processes end: all with one status, after one of them has said why.

    an error, or a process that is lost -> one line -> all leave the world -> all end

torchrun kills those it still finds when the first has ended by an error or a signal, so they wait
for each other, a while.
"""

import contextlib
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from mlnt.distributed import TIMEOUT_S, ProcessLost, World, join, leave

PATIENCE_S = 10.0


class Terminated(ProcessLost):
    """torchrun ends this process, most likely since another has ended."""


def only_the_first_speaks(world: World) -> None:
    """Let the others print nothing, and torchrun's signal be an exception in all."""
    if world.size == 1:
        return
    signal.signal(signal.SIGTERM, _terminated)
    if not world.leads:
        warnings.simplefilter("ignore")
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (to the end)


def _terminated(number: int, frame: Any) -> None:
    raise Terminated("torchrun ends it")


def end_together(status: int, message: str, say: Callable[[str], None]) -> int:
    """The exit status of all processes when this one ends by an error.

    Whoever comes first says why, and leaves the world, at which the others wake up from what they
    wait for and come here too.
    """
    try:
        world = join()
    except ValueError:  # that is the error
        world = World()
    if world.size == 1:
        say(message)
        return status
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    store = world.store
    with contextlib.suppress(RuntimeError):  # nobody to wait for: the store went with torchrun
        if store.add("ending", 1) == 1:
            store.set("status", str(status))
            say(message)
            sys.stderr.flush()
        status = int(store.get("status"))
        leave()
        _meet(world, "ended", PATIENCE_S)
    return status


def wait_for_others(world: World) -> None:
    """Where all were asked to stop: the first may still be writing."""
    if world.size > 1:
        with contextlib.suppress(RuntimeError):
            _meet(world, "stopped", TIMEOUT_S, unless=lambda: world.store.add("ending", 0) > 0)


def _meet(
    world: World, place: str, seconds: float, unless: Callable[[], bool] = lambda: False
) -> None:
    """Return when all who are left have come to this place."""
    world.store.add(place, 1)

    def are_here() -> bool:
        return world.store.add(place, 0) >= world.size - len(_gone(world))

    _wait_until(lambda: are_here() or unless(), seconds)


def explain(loss: ProcessLost) -> str:
    """Which processes are lost, as far as this one can find out."""
    world, lost = join(), list[int]()
    store = world.store
    others = [rank for rank in range(world.size) if rank != world.rank]

    def silent() -> list[int]:
        return [rank for rank in others if store.add(f"noticed/{rank}", 0) == 0]

    def is_clear() -> bool:
        lost[:] = _gone(world)
        return bool(lost) or store.add("ending", 0) > 0 or not silent()

    with contextlib.suppress(RuntimeError):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        store.add(f"noticed/{world.rank}", 1)
        # Those of this machine that are gone can be seen; of the others it counts who is silent.
        _wait_until(is_clear)
        lost = lost or silent()
    if not lost:
        return f"the processes have lost each other ({loss}){loss.advice}"
    names = ", ".join(str(rank) for rank in lost)
    return f"process {names} of {world.size} ended or does not answer{loss.advice}"


def _gone(world: World) -> list[int]:
    """The processes of this machine that are no more."""
    here, gone = socket.gethostname(), []
    for rank in range(world.size):
        host, pid = world.store.get(f"process/{rank}").decode().split()
        if host == here and _is_gone(int(pid)):
            gone.append(rank)
    return gone


def _is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            # A process that torchrun has not buried yet is gone too.
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        pass  # gone, or no such files on this system
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Until it holds, or patience ends."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
