"""--deterministic: on a GPU the same bits in every run, resumed ones too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mlnt
from mlnt.config import make_settings
from mlnt.device import CUBLAS, STEADY, computing, deterministic_algorithms, prepare_deterministic
from mlnt.errors import InputError, Stopped
from mlnt.runs import RunFolder
from mlnt.training import Watcher

# How long it took, and whether others were on the GPU meanwhile.
OF_THE_MACHINE = ("seconds", "step_ms", "shared_gpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
OPTIONS = {"noise": "symmetric:0.4", "epochs": 2, "iterations": 2, "sets": 2, "batch_size": 128}
# Of the losses of each epoch on a GPU without --deterministic, in float64.
TOLERANCE = 1e-6

# In a process of its own: cuBLAS must be told before the process uses the GPU.
SCRIPT = """
import sys
from pathlib import Path
import mlnt
from mlnt.training import Watcher

class StopEvery(Watcher):
    steps = 7
    def step_ends(self):
        self.steps -= 1
        if self.steps == 0:
            raise mlnt.Stopped

folder, stops = Path(sys.argv[1]), int(sys.argv[2])
options = dict(noise="symmetric:0.4", epochs=2, iterations=2, sets=2, batch_size=128,
               model=sys.argv[3], crop_padding=1, device="cuda", deterministic=True)
for stop in range(stops):
    try:
        mlnt.train("digits", out=folder, resume=True, watchers=[StopEvery()], **options)
    except mlnt.Stopped:
        pass
mlnt.train("digits", out=folder, resume=True, **options)
"""


@pytest.mark.gpu
@needs_gpu
def test_the_same_bits_on_a_gpu(tmp_path: Path) -> None:
    """Twice without a stop, and stopped within epochs in a process of its own."""
    model = "preact_resnet32"  # small_conv pools as no GPU does deterministically, and says so
    environment = {**os.environ, "PYTHONPATH": str(Path(mlnt.__file__).parent.parent)}
    environment.pop(CUBLAS, None)
    for name, stops in (("whole", 0), ("again", 0), ("stopped", 4)):
        arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / name), str(stops), model]
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    for name in ("best", "student", "teacher"):
        whole = load_file(tmp_path / "whole" / f"{name}.safetensors")
        for other in ("again", "stopped"):
            found = load_file(tmp_path / other / f"{name}.safetensors")
            assert all(torch.equal(found[key], whole[key]) for key in whole), (other, name)
    rows, others = (
        [
            {key: value for key, value in row.items() if key not in OF_THE_MACHINE}
            for row in RunFolder(tmp_path / name).read_metrics()
        ]
        for name in ("whole", "stopped")
    )
    assert rows == others


class StopAfter(Watcher):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step_ends(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Stopped


@pytest.mark.gpu
@needs_gpu
def test_with_graphs_the_same_trajectory(tmp_path: Path) -> None:
    """Stopped in the middle of the first epoch of MLNT, after its step was recorded.

    In float64, where what kernels round differently stays small: the batches, random numbers and
    rates are the same, or the losses would differ by percents.
    """
    options = {**OPTIONS, "device": "cuda", "precision": "float64", "engine": "folded"}
    whole = mlnt.train("digits", **options)
    with pytest.raises(Stopped):
        mlnt.train("digits", out=tmp_path / "run", watchers=[StopAfter(24)], **options)
    again = mlnt.train("digits", out=tmp_path / "run", resume=True, **options)
    for row, other in zip(whole.history, again.history, strict=True):
        for name in ("class_loss", "meta_loss"):
            if name in row:
                print(row["iteration"], row["epoch"], name, row[name], other[name] - row[name])
                assert other[name] == pytest.approx(row[name], rel=TOLERANCE), (row, name)


def test_settings_of_torch_come_and_go() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with computing(make_settings(deterministic=True), torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled(), "a CPU needs none of it"


def test_what_cannot_be_deterministic_is_named() -> None:
    with (
        pytest.raises(InputError, match=r"^put_ has no deterministic form on a GPU; train without"),
        deterministic_algorithms(),
    ):
        raise RuntimeError(
            "put_ does not have a deterministic implementation, but you set "
            "'torch.use_deterministic_algorithms(True)'."
        )
    with pytest.raises(RuntimeError, match=r"^other$"), deterministic_algorithms():
        raise RuntimeError("other")
    assert not torch.are_deterministic_algorithms_enabled()


def test_cublas_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUBLAS, ":16:8")
    prepare_deterministic()
    assert os.environ[CUBLAS] == ":16:8", "what the user has set stays"
    monkeypatch.delenv(CUBLAS)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(InputError, match=f"set {CUBLAS}={STEADY} before Python starts"):
        prepare_deterministic()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    prepare_deterministic()
    assert os.environ[CUBLAS] == STEADY


def test_on_a_cpu_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CUBLAS, raising=False)  # asked for only where a GPU may be used
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    usual, steady = (
        mlnt.train((rows, torch.arange(60) % 2), epochs=1, deterministic=wanted, device="cpu")
        for wanted in (False, True)
    )
    for name, value in usual.model.state_dict().items():
        assert torch.equal(steady.model.state_dict()[name], value)
