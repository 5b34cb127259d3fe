"""Ctrl-C, SIGTERM, a closed terminal.

The first ends training after its step, the second at once, unless it is of the terminal.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

from mlnt.config import Settings
from mlnt.data.dataset import Dataset
from mlnt.distributed import ALL_ALONE, World
from mlnt.errors import Stopped
from mlnt.training import Stage, Watcher

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = tuple(number for number in (signal.SIGINT, signal.SIGTERM, HANGUP) if number is not None)
ECHO_S = 2.0  # torchrun passes on what a scheduler sends to it and to its processes


class Interruption(Watcher):
    """Listens from the beginning of a training to the end of its `with`.

    Raises `Stopped` where training can be stopped without loss; before there is anything to lose,
    signals do what they do otherwise.
    """

    everywhere = True  # a signal comes to all, and what the first makes of it counts

    def __init__(self, world: World = ALL_ALONE) -> None:
        self.world = world
        self.number: int | None = None  # of the signal that came
        self.came_at = 0.0
        self.has_spoken = False
        self.usual: dict[int, Any] = {}  # what the signals did before
        self.terminals = [number for number in (1, 2) if os.isatty(number)]  # of stdout, stderr

    @property
    def status(self) -> int:
        """The exit status: 130 after Ctrl-C, 143 after SIGTERM, 129 after a hangup, else 0."""
        return 0 if self.number is None else 128 + self.number

    def __enter__(self) -> "Interruption":
        return self

    def __exit__(self, *exception: object) -> None:
        for number, action in self.usual.items():
            signal.signal(number, action)
        self.usual = {}

    def run_begins(self, dataset: Dataset, settings: Settings, reasons: Mapping[str, str]) -> None:
        if not self.usual and threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
                    self.usual[number] = signal.signal(number, self._came)

    def stage_begins(self, stage: Stage, epochs: int, steps: int, done: int) -> None:
        self._stop_if_asked()

    def step_ends(self) -> None:
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        if self.number is not None:
            self._speak()
            raise Stopped(f"stopped by {signal.Signals(self.number).name}")

    def _came(self, number: int, frame: object) -> None:
        if number == HANGUP:
            self._speak_to_nobody()
            if self.number is not None:
                return  # nobody's second wish: at the end of a session it comes beside others
        if self.number is not None:
            if self.world.size > 1 and time.monotonic() - self.came_at < ECHO_S:
                return
            raise SystemExit(128 + number)
        self.number, self.came_at = number, time.monotonic()
        if self.world.size == 1:  # else torchrun may have sent it, since another has ended
            self._speak()

    def _speak(self) -> None:
        if self.world.leads and not self.has_spoken:
            self.has_spoken = True
            # Past Python's buffers, in which this process may be at this very moment.
            with contextlib.suppress(OSError):  # nobody may read it any more
                os.write(2, b"\nmlnt: stopping after this step; once more ends at once\n")

    def _speak_to_nobody(self) -> None:
        """Every word to a terminal that is gone would be an error."""
        with open(os.devnull, "wb") as nowhere:
            for descriptor in self.terminals:
                os.dup2(nowhere.fileno(), descriptor)
