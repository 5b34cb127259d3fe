"""Where figures come from: which machine, which commit of this source tree."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch


def about(device: torch.device) -> dict[str, str]:
    """What every file of figures says of where it comes from."""
    return {
        "machine": machine_name(device),
        "commit": commit(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def commit() -> str:
    """Commit of the source tree this file is in, with +changes; `unknown` outside of one.

    The variable MLNT_COMMIT says it for a tree that was copied without its history.
    """
    if told := os.environ.get("MLNT_COMMIT"):
        return told
    package = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=package, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        # Installed below somebody else's repository, their commit would say nothing.
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "mlnt" != package:
            return "unknown"
        changed = git("status", "--porcelain", "--untracked-files=no")
        # What else lies about, such as runs, is no part of what computes.
        added = git("ls-files", "--others", "--exclude-standard", "--", ":/src")
        return git("rev-parse", "HEAD") + ("+changes" if changed or added else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
