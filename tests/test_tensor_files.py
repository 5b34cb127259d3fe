"""Weights that torch.save wrote: read as torch reads them, and never run."""

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mlnt.errors import InputError
from mlnt.models import read_weights
from mlnt.resnet import resnet18

ODD = {
    "turned": torch.arange(12.0).reshape(3, 4).t(),
    "single": torch.tensor(3.5).half(),
    "empty": torch.empty(0),
    "rough": torch.ones(2).bfloat16(),
    "counted": torch.tensor([7]),
    "parameter": nn.Parameter(torch.ones(2, 2)),
    "part": torch.arange(10)[3:7:2],
}


def checkpoint(model: nn.Module) -> dict:
    """As training scripts save it: the weights among other things."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    optimizer.step()
    return {"epoch": 3, "optimizer": optimizer.state_dict(), "state_dict": model.state_dict()}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("what", ["odd", "network", "checkpoint"])
def test_as_torch_reads_them(is_zip: bool, what: str, tmp_path: Path) -> None:
    network = nn.Linear(3, 2) if what == "checkpoint" else resnet18(3, 2)
    saved = {"odd": ODD, "network": network.state_dict(), "checkpoint": checkpoint(network)}[what]
    torch.save(saved, tmp_path / "w.pt", _use_new_zipfile_serialization=is_zip)
    found = read_weights(tmp_path / "w.pt")
    expected = torch.load(tmp_path / "w.pt", weights_only=True)
    expected = expected.get("state_dict", expected)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value.detach()), name


class Runs:
    def __reduce__(self) -> tuple:
        return eval, ("1/0",)


class TakesMemory:
    def __reduce__(self) -> tuple:
        return bytearray, (2**40,)


@pytest.mark.parametrize("value", [Runs(), TakesMemory(), torch.FloatStorage, [1], 3, {"w": 3}])
@pytest.mark.parametrize("is_zip", [True, False])
def test_what_is_no_tensor_is_refused(value: object, is_zip: bool, tmp_path: Path) -> None:
    torch.save({"w": value}, tmp_path / "w.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(InputError, match="cannot be read as weights"):
        read_weights(tmp_path / "w.pt")


def changed(saved: Tensor, was: bytes, now: bytes, path: Path) -> None:
    """The archive of a tensor with other numbers in its pickle."""
    file = io.BytesIO()
    torch.save({"w": saved}, file)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl"):
                assert was in content
                content = content.replace(was, now)
            new.writestr(name, content)


def test_a_shape_beyond_its_storage_is_refused(tmp_path: Path) -> None:
    shape, huge = (pickle.dumps((n,), 2)[2:-3] for n in (77, 2**40))
    changed(torch.ones(77), shape, huge, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"a tensor \[1099511627776\] in a storage of 77 values"):
        read_weights(tmp_path / "w.pt")
    count = pickle.dumps(77, 2)[2:-1]
    changed(torch.ones(77), count, pickle.dumps(76, 2)[2:-1], tmp_path / "w.pt")
    with pytest.raises(InputError, match="holds 308 bytes, not 304"):
        read_weights(tmp_path / "w.pt")
