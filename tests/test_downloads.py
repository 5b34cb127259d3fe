"""CIFAR-10 and Fashion-MNIST by name: only when allowed, whole or not at all. All on loopback."""

import gzip
import hashlib
import io
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

import mlnt
from cifar_files import RECORDS, same, write_archive, write_binary
from mlnt.data import cifar10 as cifar
from mlnt.data import downloads
from mlnt.data import fashion_mnist as fashion
from mlnt.data.cifar10 import BINARY, cifar10, fetch_cifar10
from mlnt.data.fashion_mnist import fetch_fashion_mnist
from mlnt.data.known import find_known
from mlnt.errors import InputError
from mlnt.reproduce import EXPERIMENTS
from mlnt.reproduce.places import find_place


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and no download unless a test allows it."""
    monkeypatch.setenv("MLNT_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("MLNT_DOWNLOAD", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "data"


class Server(BaseHTTPRequestHandler):
    """Answers with `content`, or claims more than it sends."""

    content = b""
    claimed = 0

    def do_GET(self) -> None:
        if not self.content:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(self.claimed or len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Server]]:
    """A small CIFAR-10 archive at the address, on this machine."""
    archive = write_archive(tmp_path / "s" / BINARY.archive, write_binary(tmp_path / "s" / "bin"))
    handler = type("Handler", (Server,), {"content": archive.read_bytes()})
    monkeypatch.setattr(cifar, "MD5", hashlib.md5(archive.read_bytes()).hexdigest())
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{http.server_port}/{BINARY.archive}"
        monkeypatch.setattr(cifar, "ADDRESS", address)
        yield handler
        http.shutdown()
        thread.join(10)


def test_only_when_allowed(
    server: type[Server], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="MLNT_DOWNLOAD=1") as refused:
        mlnt.open_dataset("cifar10")
    said = str(refused.value)
    assert all(part in said for part in (cifar.ADDRESS, str(data / "cifar10"), BINARY.archive))
    assert "\n" not in said
    assert not data.exists()
    monkeypatch.setenv("MLNT_DOWNLOAD", "1")
    assert cifar10(fetch_cifar10(), RECORDS).name == "cifar10"


@pytest.mark.parametrize("terminal", [False, True])
def test_into_the_data_folder(
    terminal: bool, server: type[Server], data: Path, tmp_path: Path
) -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=terminal, width=100)
    path = fetch_cifar10(download=True, tell=console)
    assert path == data / "cifar10" / BINARY.archive
    assert [p.name for p in path.parent.iterdir()] == [BINARY.archive]
    assert same(cifar10(path, RECORDS), cifar10(tmp_path / "s" / "bin", RECORDS))
    assert BINARY.archive in shown.getvalue()
    server.content = b""
    assert fetch_cifar10(download=True) == data / "cifar10", "it is there already"


@pytest.mark.usefixtures("server")
def test_an_experiment_finds_it_in_the_same_place_the_next_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table1 = EXPERIMENTS["table1"]
    for download in (True, False):
        place = find_place("table1", table1, Path("cifar10"), fast=True, download=download)
        assert place.arguments("symmetric:0.5")["data"] == data / "cifar10"


def test_find_known_passes_the_wish_on(server: type[Server], data: Path) -> None:
    with pytest.raises(InputError, match="10,000 records"):  # ours are small
        find_known("cifar10", download=True)
    assert (data / "cifar10" / BINARY.archive).is_file()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("checksum", r"its MD5 is .*, the published one 0000"),
        ("interrupted", r"the connection ended after [\d,]+ of [\d,]+ bytes"),
        ("absent", "Not Found"),
        ("endless", "larger than 1,000 bytes"),
        ("refused", "refused"),
        ("no folder", "Not a directory|File exists"),
    ],
)
def test_a_failure_leaves_nothing(
    fault: str,
    message: str,
    server: type[Server],
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault == "checksum":
        monkeypatch.setattr(cifar, "MD5", "0000")
    elif fault == "interrupted":
        server.claimed = 2 * len(server.content)
    elif fault == "absent":
        server.content = b""
    elif fault == "endless":
        monkeypatch.setattr(cifar, "MOST_BYTES_OF_AN_ARCHIVE", 1000)
    elif fault == "refused":
        monkeypatch.setattr(cifar, "ADDRESS", "http://127.0.0.1:9/x")
    else:
        data.write_text("a file where the folder should be")
    before = sorted(data.parent.rglob("*"))
    with pytest.raises(InputError, match=message) as failed:
        fetch_cifar10(download=True)
    said = str(failed.value)
    assert said.startswith(f"cannot download {cifar.ADDRESS} (")
    assert said.endswith(f"put {BINARY.archive} into {data / 'cifar10'} by hand")
    assert "\n" not in said
    assert sorted(data.parent.rglob("*")) == before


def test_control_c_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Response(io.BytesIO):
        headers = {"Content-Length": "9"}  # noqa: RUF012

        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise KeyboardInterrupt
            return super().read(4)

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(b"12345678"))
    with pytest.raises(KeyboardInterrupt):
        fetch_cifar10(download=True)
    assert not data.exists()


def test_the_folder_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLNT_DATA")
    monkeypatch.setenv("HOME", "/somewhere")
    assert downloads.data_folder() == Path("/somewhere/.cache/mlnt")
    assert cifar.ADDRESS.endswith("/" + BINARY.archive)


class Folder(BaseHTTPRequestHandler):
    """Answers with the file of that name."""

    files: dict[str, bytes] = {}  # noqa: RUF012 (each test has a class of its own)

    def do_GET(self) -> None:
        content = self.files[self.path.rpartition("/")[2]]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_fashion_mnist_is_fetched_file_by_file(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = bytes([9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9])
    images = bytes([0, 0, 8, 3, 0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 2]) + bytes(range(64))
    numbers = bytes([0, 0, 8, 1, 0, 0, 0, 16]) + labels
    files = {
        f"{name}.gz": gzip.compress(images if "images" in name else numbers) for name in fashion.MD5
    }
    monkeypatch.setattr(fashion, "DEBIAN_FOLDER", tmp_path / "absent")
    with pytest.raises(InputError, match=r"fashion-mnist is not in .*--download") as refused:
        mlnt.open_dataset("fashion-mnist")
    assert "\n" not in str(refused.value)
    assert not data.exists()
    handler = type("Handler", (Folder,), {"files": files})
    right = {name: hashlib.md5(files[f"{name}.gz"]).hexdigest() for name in fashion.MD5}
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(fashion, "ADDRESS", f"http://127.0.0.1:{http.server_port}/data")
        try:
            with pytest.raises(InputError, match=r"its MD5 is .*, the published one"):
                fetch_fashion_mnist(download=True)
            assert not data.exists(), "a file that is not the published one leaves nothing"
            monkeypatch.setattr(fashion, "MD5", right)
            found = mlnt.open_dataset("fashion-mnist", download=True)
        finally:
            http.shutdown()
            thread.join(10)
    assert (found.name, len(found.train)) == ("fashion-mnist", 16)
    assert sorted(path.name for path in (data / "fashion-mnist").iterdir()) == sorted(files)
    assert fetch_fashion_mnist() == data / "fashion-mnist", "it is there already"
