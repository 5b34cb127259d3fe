"""One of the processes that `mlnt bench --scaling` has torchrun start: python -m … FILE STEPS.

Times steps and messages, pinned to a core; the first process writes them into FILE.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mlnt.bench.rows import RATES, Case, own_steps
from mlnt.bench.scaling import BATCH, MODEL, SETS, SIZES
from mlnt.distributed import World, join

MESSAGES = 40


def main(target: Path, steps: int) -> None:
    torch.set_num_threads(1)
    world = join()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[world.local_rank % len(cores)]})
    device = torch.device("cpu")
    times: dict[str, tuple[float, float]] = {}
    for sets in (1, SETS):
        case = Case("mlnt", "mlnt", MODEL, BATCH, sets, engine="plain")
        runner = own_steps(case, device, world)
        runner.run([RATES] * 2)
        step = functools.partial(runner.run, [RATES])
        times[str(sets)] = _busiest_ms(step, steps, world)
    messages = {}
    for size in SIZES:
        send = functools.partial(world.sum, torch.zeros(size))
        send()
        messages[str(size)] = _busiest_ms(send, MESSAGES, world)[0]
    if world.leads:
        target.write_text(json.dumps({"steps": times, "messages": messages}), encoding="utf-8")


def _busiest_ms(call: Callable[[], object], times: int, world: World) -> tuple[float, float]:
    """Milliseconds of a call: processor time of the busiest process, and by the first's clock."""
    world.share(None)  # begin together
    began, clock = time.process_time(), time.perf_counter()
    for _ in range(times):
        call()
    used, passed = time.process_time() - began, time.perf_counter() - clock
    return 1000 * max(world.gather_values(used)) / times, 1000 * passed / times


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
