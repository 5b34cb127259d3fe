"""Memory of a training on a CPU: kept from step to step.

glibc asks the system for each large block and gives it back when it is freed. A step frees hundreds
of megabytes that the next one asks for again, and each of their pages costs a fault: on pictures of
64 × 64 pixels more than half of the processor's time.
"""

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator

# Options of mallopt(3), and its largest number.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
LARGEST = 2**31 - 1
PAD = 2**28  # bytes taken from the system at once
# What glibc comes to by itself in a process that frees large blocks.
USUAL = {MMAP_MAX: 65_536, MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**26, TOP_PAD: 2**17}


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Within: what is freed stays with the process; after: it goes back to the system.

    Does nothing without glibc, or where the user has settled these matters by the environment.
    """
    if platform.libc_ver()[0] != "glibc" or _is_settled():
        yield
        return
    libc = ctypes.CDLL(None)
    for option, value in {MMAP_MAX: 0, TRIM_THRESHOLD: LARGEST, TOP_PAD: PAD}.items():
        libc.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in USUAL.items():
            libc.mallopt(option, value)
        libc.malloc_trim(0)


def _is_settled() -> bool:
    return any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
