"""Large blocks that are freed and asked for again cost no page faults during a training."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import mlnt

# In a process of its own: the options of the C library are the whole process's.
SCRIPT = """
import resource
import torch
from mlnt.allocator import memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

torch.set_num_threads(1)
faults()
print(faults())
before = resident()
with memory_kept():
    faults()
    print(faults())
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
@pytest.mark.parametrize("settled", [False, True], ids=["", "settled by the user"])
def test_blocks_are_taken_again(settled: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    environment["PYTHONPATH"] = str(Path(mlnt.__file__).parent.parent)
    if settled:
        environment["MALLOC_ARENA_MAX"] = "2"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    before, within, kept = (int(line) for line in done.stdout.split())
    assert before > 5 * 30, "each block faults, in large pages or small ones"
    if settled:
        assert within > before / 2
    else:
        assert within < before / 10
        assert kept < 2**25, "what was kept has gone back"
