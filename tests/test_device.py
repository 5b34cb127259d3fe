"""Threads and processes that train beside each other."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mlnt.device import drawing_from

CPU = torch.device("cpu")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent() -> None:
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with drawing_from(0, CPU):
            begun.set()
            done.wait(20)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        begun.wait(20)
        if (child := os.fork()) == 0:
            drawn = threading.Thread(target=_draw, daemon=True)
            drawn.start()
            drawn.join(10)
            os._exit(drawn.is_alive())  # at once: the rest of the tests is the parent's
        _, status = os.waitpid(child, 0)
        done.set()
    assert os.waitstatus_to_exitcode(status) == 0


def _draw() -> None:
    with drawing_from(0, CPU):
        torch.rand(1)
