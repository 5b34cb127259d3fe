"""Streamed batches: the same as read one by one, whatever the workers; faults; waiting."""

import csv
import itertools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clothing_tree import make_small_tree
from mlnt.data import streaming
from mlnt.data.clothing1m import clothing1m_parts
from mlnt.data.image_files import CPU, FaultLog, ImageFiles
from mlnt.data.pictures import PathTable, PictureError, read_picture
from mlnt.data.streaming import STREAMED_BATCH, Feeder, batches, default_workers
from mlnt.errors import InputError, TrainingError
from mlnt.evaluation import predict_probabilities

WORKERS = (0, 1, 2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    """56 pictures, cropped to 28 pixels."""
    tree = make_small_tree(tmp_path_factory.mktemp("tree"), 4)
    return ImageFiles(clothing1m_parts(tree).train.paths, FaultLog(10), size=32, crop=28)


def fake_files(read: object, count: int = 40, **options: object) -> ImageFiles:
    """Pictures that are on no disk: `read` makes them from their path."""
    paths = PathTable.of("/nowhere", [str(number) for number in range(count)])
    return ImageFiles(paths, FaultLog(10), size=4, crop=4, read=read, **options)


def number_of(path: str) -> int:
    return int(path.rpartition("/")[2])


def read_number(path: str, size: int, crop: int) -> np.ndarray:
    """A picture whose pixels are its number."""
    return np.full((3, crop, crop), number_of(path), np.uint8)


def read_all_but_multiples_of_7(path: str, size: int, crop: int) -> np.ndarray:
    if number_of(path) % 7 == 0:
        raise PictureError("a multiple of seven")
    return read_number(path, size, crop)


def fail(path: str, size: int, crop: int) -> np.ndarray:
    raise KeyError("a mistake of ours")


def die(path: str, size: int, crop: int) -> np.ndarray:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def shuffled(count: int, size: int, seed: int = 0) -> tuple[Tensor, ...]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).split(size)


class TestImageFiles:
    def test_stands_for_a_tensor(self, files: ImageFiles) -> None:
        assert len(files) == 56
        assert files.shape == (56, 3, 28, 28)
        assert files.ndim == 4
        assert files.is_floating_point()
        some = files[torch.tensor([5, 3])]
        assert list(some.paths) == [files.paths[5], files.paths[3]]
        assert files[:2].shape == (2, 3, 28, 28)
        moved = files.to(CPU, torch.float64)
        assert moved.faults is files.faults
        assert moved.normalise(files.load(torch.tensor([0]))).dtype == torch.float64
        assert files.to(CPU, None).dtype == torch.float32

    def test_load_and_normalise(self, files: ImageFiles) -> None:
        pixels = files.load(torch.tensor([9, 0]))
        assert pixels.dtype == torch.uint8
        expected = torch.from_numpy(read_picture(files.paths.full(9), 32, 28))
        assert torch.equal(pixels[0], expected)
        red = (expected[0].double() / 255 - 0.485) / 0.229
        torch.testing.assert_close(files.normalise(pixels)[0, 0].double(), red, atol=1e-6, rtol=0)

    def test_the_crop_must_fit(self, files: ImageFiles) -> None:
        with pytest.raises(InputError, match="resized to 32 and cropped to 33"):
            ImageFiles(files.paths, files.faults, size=32, crop=33)


class TestFeeder:
    @pytest.mark.parametrize("workers", WORKERS)
    def test_batches_are_those_read_one_by_one(self, files: ImageFiles, workers: int) -> None:
        before = torch.get_rng_state()
        with Feeder(files, 10, workers) as feeder:
            for seed in (0, 1):  # two epochs, the same workers
                order = shuffled(56, 10, seed)
                feeder.feed(order)
                for indices_B in order:
                    fed = feeder.next()
                    assert torch.equal(fed.indices, indices_B)
                    assert fed.pixels.is_contiguous()
                    assert torch.equal(fed.pixels, files.load(indices_B))
                with pytest.raises(StopIteration):
                    feeder.next()
        assert torch.equal(torch.get_rng_state(), before), "the process's generator is not used"

    def test_an_epoch_may_be_left_early(self) -> None:
        with Feeder(fake_files(read_number), 4, workers=1) as feeder:
            for _ in range(3):
                feeder.feed(shuffled(40, 4))
                assert torch.equal(feeder.next().indices, shuffled(40, 4)[0])

    @pytest.mark.parametrize("workers", WORKERS)
    def test_evaluation_in_order(self, files: ImageFiles, workers: int) -> None:
        streamed = ImageFiles(files.paths, files.faults, 32, 28, workers=workers)
        parts = list(batches(streamed, 25))
        assert [len(part) for part in parts] == [25, 25, 6]
        everything = files.normalise(files.load(torch.arange(56)))
        assert torch.equal(torch.cat(parts), everything)

    def test_evaluation_of_tensors_and_in_small_pieces(self) -> None:
        rows = torch.arange(10).reshape(5, 2)
        assert torch.equal(torch.cat(list(batches(rows, 2))), rows)
        assert next(batches(rows.float(), 2, CPU, torch.float64)).dtype == torch.float64
        many = fake_files(read_number, 100, workers=0)
        assert [len(part) for part in batches(many, 1024)] == [STREAMED_BATCH, 36]

    def test_never_more_in_memory_than_what_is_ahead(self) -> None:
        read = []

        def count(path: str, size: int, crop: int) -> np.ndarray:
            read.append(path)
            return read_number(path, size, crop)

        files = fake_files(count)
        order = shuffled(40, 4)
        assert read == [], "nothing is read before it is asked for"
        with Feeder(files, 4, workers=0) as feeder:
            feeder.feed(order)
            for step, _ in enumerate(order, start=1):
                feeder.next()
                assert len(read) == 4 * step
        assert len(files[torch.arange(20)]) == 20
        assert len(read) == 40

    def test_workers_draw_only_what_they_keep_ready(self) -> None:
        drawn = []

        def order() -> itertools.count:
            for number in itertools.count():
                drawn.append(number)
                yield torch.tensor([number % 40])

        with Feeder(fake_files(read_number), 1, workers=1) as feeder:
            feeder.feed(order())  # endless
            for _ in range(20):
                feeder.next()
        assert len(drawn) <= 20 + streaming.AHEAD

    def test_default_workers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for cores, expected in ((1, 0), (2, 1), (6, 5), (64, 8)):
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
            assert default_workers() == expected
        room = os.statvfs_result((1, 4096, 0, 0, 64 * 256, 0, 0, 0, 0, 0))  # 64 MB
        monkeypatch.setattr(os, "statvfs", lambda _: room)
        assert default_workers(3 * 224 * 224 * 32) == 2
        assert default_workers(3 * 224 * 224 * 256) == 0


class TestFaults:
    @pytest.mark.parametrize("workers", WORKERS)
    def test_another_of_the_batch_takes_the_place(self, workers: int) -> None:
        files = fake_files(read_all_but_multiples_of_7)
        with Feeder(files, 5, workers) as feeder:
            feeder.feed([torch.tensor([1, 7, 3, 0, 2]), torch.tensor([7, 8])])
            fed = feeder.next()
            assert fed.indices.tolist() == [1, 1, 3, 3, 2]
            assert fed.pixels[:, 0, 0, 0].tolist() == [1, 1, 3, 3, 2], "label and picture agree"
            assert feeder.next().indices.tolist() == [8, 8]
        assert files.faults.found == {
            "/nowhere/7": "a multiple of seven",
            "/nowhere/0": "a multiple of seven",
        }

    def test_in_evaluation_a_blank_takes_the_place(self) -> None:
        files = fake_files(read_all_but_multiples_of_7, 20, workers=0)
        rows = torch.cat(list(batches(files, 6)))
        assert len(rows) == 20
        assert rows[::7].abs().max() < 0.01, "the mean colour"
        assert len(files.faults.found) == 3

    @pytest.mark.parametrize("workers", [0, 1])
    def test_too_many(self, tmp_path: Path, workers: int) -> None:
        faults = FaultLog(3, tmp_path / "faults.csv")
        paths = PathTable.of("/nowhere", [str(number) for number in range(40)])
        files = ImageFiles(paths, faults, size=4, crop=4, read=read_all_but_multiples_of_7)
        with Feeder(files, 8, workers) as feeder:
            feeder.feed(torch.arange(40).split(8))
            feeder.next()
            feeder.next()  # 0, 7 and 14 so far
            with pytest.raises(InputError) as caught:
                feeder.next()
        message = str(caught.value)
        assert message.startswith("4 pictures cannot be read, the limit is 3; the first: ")
        assert "/nowhere/0 (a multiple of seven)" in message
        assert str(tmp_path / "faults.csv") in message
        with (tmp_path / "faults.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["path"] for row in rows] == [f"/nowhere/{n}" for n in (0, 14, 21, 7)]

    def test_the_limit(self) -> None:
        assert FaultLog.of(50).limit == 10
        assert FaultLog.of(1_000_000).limit == 10_000
        log = FaultLog(1)
        for _ in range(5):
            log.record([("a.jpg", "missing")])  # epoch after epoch, once
        with pytest.raises(InputError, match="mlnt data check"):
            log.record([("b.jpg", "missing")])

    def test_a_whole_batch(self) -> None:
        with Feeder(fake_files(read_all_but_multiples_of_7), 2, workers=0) as feeder:
            feeder.feed([torch.tensor([7, 14])])
            with pytest.raises(InputError, match="none of the 2 pictures of a batch can be read"):
                feeder.next()

    def test_real_files(self, files: ImageFiles, tmp_path: Path) -> None:
        (tmp_path / "broken.jpg").write_bytes(b"broken")
        paths = PathTable.of("", [*map(files.paths.full, range(3)), str(tmp_path / "broken.jpg")])
        some = ImageFiles(paths, FaultLog(10), size=32, crop=28)
        with Feeder(some, 4, workers=1) as feeder:
            feeder.feed([torch.arange(4)])
            assert feeder.next().indices.tolist() == [0, 1, 2, 0]
        assert list(some.faults.found.values()) == ["no picture of a known format"]


class TestWorkers:
    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_mistake_in_a_worker_is_one_line(self, workers: int) -> None:
        with Feeder(fake_files(fail), 2, workers) as feeder:
            feeder.feed([torch.arange(2)])
            with pytest.raises(TrainingError, match=r"failed: KeyError: 'a mistake of ours'$"):
                feeder.next()

    def test_a_worker_that_dies(self) -> None:
        with Feeder(fake_files(die), 2, workers=1) as feeder:
            feeder.feed([torch.arange(2)])
            with pytest.raises(
                TrainingError, match=r"ended \(DataLoader worker \(pid.* \d+\).*; was there memory"
            ):
                feeder.next()

    def test_workers_end_when_the_feeder_is_closed(self) -> None:
        feeder = Feeder(fake_files(read_pid), 2, workers=2)
        feeder.feed([torch.arange(2)] * 4)
        pids = {pid_in(feeder.next().pixels) for _ in range(4)}
        assert len(pids) == 2
        feeder.close()
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    @pytest.mark.skipif(sys.platform != "linux", reason="the parent's death is told on Linux only")
    def test_workers_die_with_a_killed_parent(self) -> None:
        program = (
            "import sys; sys.path[:0] = sys.argv[1:]\n"
            "import torch, test_streaming as t\n"
            "feeder = t.Feeder(t.fake_files(t.read_pid), 2, workers=2)\n"
            "feeder.feed([torch.arange(2)] * 4)\n"
            "print(*{t.pid_in(feeder.next().pixels) for _ in range(4)}, flush=True)\n"
            "sys.stdin.read()\n"
        )
        here = Path(__file__).parent
        command = [sys.executable, "-c", program, str(here), str(here.parent / "src")]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as parent:
            pids = [int(word) for word in parent.stdout.readline().split()]
            ends = [os.pidfd_open(pid) for pid in pids]
            parent.kill()
        assert len(pids) == 2
        for end in ends:
            assert select.select([end], [], [], 20)[0], "a worker lives on"
            os.close(end)

    @pytest.mark.parametrize("mistake", ["in_the_loop", "in_the_loader", "in_evaluation"])
    def test_a_process_ends_after_an_error(self, mistake: str) -> None:
        """Workers ignore SIGTERM, by which multiprocessing would end them, and wait for that."""
        program = (
            f"import sys; sys.path[:0] = sys.argv[1:]\nimport test_streaming as t\nt.{mistake}()"
        )
        here = Path(__file__).parent
        command = [sys.executable, "-c", program, str(here), str(here.parent / "src")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.stderr.endswith(f"KeyError: '{mistake}'\n")


def in_the_loop() -> None:
    """The feeder is left open."""
    feeder = Feeder(fake_files(read_number), 4, workers=2)
    feeder.feed(shuffled(40, 4))
    feeder.next()
    raise KeyError("in_the_loop")


def in_the_loader() -> None:
    """It is closed, while frames of the error hold the loader."""

    def order() -> Iterator[Tensor]:
        yield from shuffled(40, 4)
        raise KeyError("in_the_loader")

    with Feeder(fake_files(read_number), 4, workers=2) as feeder:
        feeder.feed(order())
        while True:
            feeder.next()


def in_evaluation() -> None:
    """Of a network, while batches are still to come."""

    class Mistaken(torch.nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            raise KeyError("in_evaluation")

    predict_probabilities(Mistaken(1, 1), fake_files(read_number, 400, workers=2))


def read_pid(path: str, size: int, crop: int) -> np.ndarray:
    """The process that reads, in the pixels."""
    digits = np.frombuffer(os.getpid().to_bytes(3 * crop * crop, "big"), np.uint8)
    return digits.reshape(3, crop, crop)


def pid_in(pixels: Tensor) -> int:
    return int.from_bytes(pixels[0].numpy().tobytes(), "big")


class Clock:
    """Time passes when somebody says so."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_waiting_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(streaming, "time", clock)

    def slow(path: str, size: int, crop: int) -> np.ndarray:
        clock.now += 0.5
        return read_number(path, size, crop)

    with Feeder(fake_files(slow), 4, workers=0) as feeder:
        assert feeder.waiting_share == 0
        for _ in range(2):  # an epoch begins anew
            feeder.feed(shuffled(40, 4))
            for _ in range(10):
                feeder.next()  # 4 · 0.5 s
                clock.now += 3  # a step
            assert feeder.waited_s == pytest.approx(20)
            assert feeder.elapsed_s == pytest.approx(20 + 9 * 3)
            assert feeder.waiting_share == pytest.approx(20 / 47)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_only_its_own_pauses_count() -> None:
    device = torch.device("cuda")
    files = fake_files(read_number).to(device)
    with Feeder(files, 4, workers=1) as feeder:
        feeder.feed(shuffled(40, 4))
        feeder.next()  # waits for the worker to start, and so does the GPU
        assert feeder.waited_s > 0
        before = feeder.waited_s
        for _ in range(9):
            torch.cuda._sleep(50_000_000)  # the GPU has work for some 30 ms
            fed = feeder.next()
        assert fed.pixels.is_pinned()
        assert feeder.waited_s - before < 0.2 * feeder.elapsed_s


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_normalising_can_be_recorded() -> None:
    files = fake_files(read_number).to(torch.device("cuda"))
    buffer = torch.zeros(2, 3, 4, 4, dtype=torch.uint8, device="cuda")
    files.normalise(buffer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        normalised = files.normalise(buffer)
    buffer.fill_(255)
    graph.replay()
    torch.testing.assert_close(normalised[0, 0].cpu(), torch.full((4, 4), (1 - 0.485) / 0.229))
