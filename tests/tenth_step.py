"""The command line, run by torchrun, in which something happens to one process, once.

    WHO=1 WHAT=dies torchrun … tenth_step.py train …

In its tenth step it is killed, or sends a signal: to torchrun, to itself, or to both. Each process
writes down the threads that it has left when it has parted from the others.
"""

import atexit
import os
import signal
from collections.abc import Callable
from pathlib import Path

from mlnt.cli import main
from mlnt.steps import Steps

WHEN = 10
ME, TORCHRUN = os.getpid(), os.getppid()


def send(number: int, *targets: int) -> None:
    """Return when the signal has come back to this process."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    for target in targets:
        os.kill(target, number)
    for _ in targets:
        os.read(reading, 1)
    signal.set_wakeup_fd(-1)


WHAT: dict[str, Callable[[], None]] = {
    "dies": lambda: os.kill(ME, signal.SIGKILL),
    # As a terminal does: torchrun's processes are in groups of their own.
    "Ctrl-C": lambda: send(signal.SIGINT, TORCHRUN),
    "SIGTERM": lambda: send(signal.SIGTERM, TORCHRUN),
    "SIGTERM to all": lambda: send(signal.SIGTERM, ME, TORCHRUN),
    "SIGTERM to it alone": lambda: send(signal.SIGTERM, ME),
}


def watch(act: Callable[[], None]) -> None:
    made, step = [], Steps._step

    def step_or_act(self, rates):
        made.append(1)
        if len(made) == WHEN:
            act()
        return step(self, rates)

    Steps._step = step_or_act


def write_threads() -> None:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    Path(f"threads-{os.environ['RANK']}").write_text("".join(names))


# Registered before mlnt's own, which therefore comes first.
atexit.register(write_threads)
if (
    os.environ["RANK"] == os.environ.get("WHO", "0")
    and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
):
    watch(WHAT[os.environ["WHAT"]])
main()
