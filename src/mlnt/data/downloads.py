"""The folder in which data sets are found by name, and downloads into it."""

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from mlnt.errors import InputError
from mlnt.files import exists

TIMEOUT_SECONDS = 30  # without a sign of life from the other side


def data_folder() -> Path:
    """`MLNT_DATA` of the environment, or else mlnt's own folder among the user's caches."""
    return Path(os.path.expanduser(os.environ.get("MLNT_DATA") or "~/.cache/mlnt"))


def download_allowed(asked: bool) -> bool:
    """Nothing is fetched from the network unless someone said so."""
    return asked or os.environ.get("MLNT_DOWNLOAD") == "1"


def download_file(
    address: str, target: Path, md5: str, most: int, tell: Console | None = None
) -> None:
    """Fetch a file; it appears under its name only once its checksum is right.

    Whatever goes wrong leaves nothing behind and raises InputError that says what to do by hand.
    """
    missing = [folder for folder in target.parents if not exists(folder)]
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        found = _fetch(address, aside, most, tell or Console(stderr=True))
        if found != md5:
            raise InputError(f"its MD5 is {found}, the published one {md5}")
        os.replace(aside, target)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        problem = " ".join(str(getattr(error, "reason", None) or error).split())
        raise InputError(
            f"cannot download {address} ({problem or type(error).__name__}); "
            f"put {target.name} into {target.parent} by hand"
        ) from None
    finally:
        _clear_away(aside, missing)


def _fetch(address: str, aside: Path, most: int, tell: Console) -> str:
    """Write what the address holds into a file; its MD5."""
    # The page of the data set publishes no other checksum.
    digest = hashlib.md5(usedforsecurity=False)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(
        TextColumn("{task.description}"), *columns, console=tell, disable=not tell.is_terminal
    )
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as response:
        size = int(response.headers.get("Content-Length") or 0)
        if not tell.is_terminal:
            tell.print(f"downloading {address}", markup=False, soft_wrap=True)
        with bar, aside.open("wb") as file:
            task = bar.add_task(address.rpartition("/")[2], total=size or None)
            received = 0
            while block := response.read(2**18):
                received += len(block)
                if received > most:
                    raise InputError(f"it is larger than {most:,} bytes")
                file.write(block)
                digest.update(block)
                bar.update(task, completed=received)
    if received < size:
        raise InputError(f"the connection ended after {received:,} of {size:,} bytes")
    return digest.hexdigest()


def _clear_away(aside: Path, made_folders: list[Path]) -> None:
    """After a failure; after success the one is gone and the others are not empty."""
    with contextlib.suppress(OSError):
        aside.unlink(missing_ok=True)
        for folder in made_folders:  # innermost first
            folder.rmdir()
