"""Mistakes and damaged files: an InputError that says what to do, never a traceback."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mlnt
from mlnt import cli
from mlnt.config import make_settings
from mlnt.data.prepare import prepare

ROWS = np.random.default_rng(0).normal(size=(60, 2))
LABELS = np.arange(60) % 3
QUICK = {"epochs": 1, "sets": 1, "iterations": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    mlnt.train((ROWS, LABELS), out=folder, **QUICK)
    return folder


DAMAGE = {
    "config.json": ["", "[]", "{}", "{", '{"data": 3}', '{"data": {"encoder": []}}'],
    "summary.json": ["", "[]", "{}"],
    "metrics.jsonl": ["{\n", "[]\n", "{}\n", "7\n"],
    "label_issues.csv": ["", "a,b\n1,2\n", "index\n1\n"],
    "best.safetensors": ["", "garbage", "\x08\x00\x00\x00\x00\x00\x00\x7f{}"],
}


@pytest.mark.parametrize(("name", "content"), [(n, c) for n, cs in DAMAGE.items() for c in cs])
def test_damaged_run_folders(
    name: str,
    content: str,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / name).write_text(content)
    (tmp_path / "new.npz").unlink(missing_ok=True)
    np.savez(tmp_path / "new.npz", X=ROWS)
    reads = {
        "config.json": ["predict", "report"],
        "best.safetensors": ["predict"],
        "label_issues.csv": ["issues", "report"],
    }
    for command in reads.get(name, ["report"]):
        extra = [str(tmp_path / "new.npz")] if command == "predict" else []
        assert cli.run([command, str(run), *extra]) == 2, command
        said = capsys.readouterr().err
        assert said.startswith("mlnt: ")
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    "settings", [{"epochs": "x"}, {"unknown": 1}, {"rho": 7}, {"method": ["mlnt"]}]
)
def test_foreign_settings_are_checked(settings: dict, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = json.loads((run / "config.json").read_text())
    config["settings"].update(settings)
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(mlnt.InputError):
        mlnt.predict(run, (ROWS, LABELS))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(5, 3), r"cannot take inputs of shape \[2, 2\]"),
        (lambda: 5, "must be an nn.Module, got int"),
        (nn.Linear(2, 3).requires_grad_(False), "no parameter that could be trained"),
        (lambda: nn.RNN(2, 3), r"got tuple|cannot take inputs"),
    ],
)
def test_models_that_do_not_fit(model: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.train((ROWS, LABELS), model=model, out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists(), "a mistake leaves nothing behind"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((ROWS, [None] * 60), r"label at index 0 is missing"),
        ((ROWS, np.linspace(0, 1, 60)), "look like measurements"),
        ((ROWS, np.full(60, 1e300)), "look like measurements"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "cannot be made an array"),
        ((np.zeros((60, 0)), LABELS), "no columns"),
        ((np.array([[1e308], [-1e308]] * 30), LABELS), "too large"),
        (([ROWS], [LABELS], 3), "a pair"),
    ],
)
def test_odd_arrays(data: tuple, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.open_dataset(data)


def test_odd_but_fine_labels() -> None:
    names = ["--5", "²", "7"] * 20
    assert mlnt.open_dataset((ROWS, names)).classes == ("--5", "7", "²")
    assert mlnt.open_dataset((torch.tensor(ROWS).bfloat16(), LABELS)).kind == "table"


def test_further_data_is_checked_like_the_first() -> None:
    with pytest.raises(mlnt.InputError, match="validation data holds no samples"):
        mlnt.open_dataset((ROWS, LABELS), validation=(np.zeros((0, 2)), []))
    with pytest.raises(mlnt.InputError, match="test data is image, but the training data is table"):
        mlnt.open_dataset((ROWS, LABELS), test="digits")
    with pytest.raises(mlnt.InputError, match="features must be finite"):
        mlnt.open_dataset((ROWS, LABELS), test=(np.array([[1e200, 0.0]]), [0]))


def test_noise_that_leaves_one_class() -> None:
    dataset = mlnt.open_dataset((ROWS[:40], np.arange(40) % 2))
    settings = make_settings("table", noise="asymmetric:1:0>1")
    with pytest.raises(mlnt.InputError, match="one class only"):
        prepare(dataset, settings)


def test_clean_validation_uses_the_true_labels_or_says_that_it_cannot() -> None:
    wrong = (LABELS + 1) % 3
    known = mlnt.open_dataset((ROWS, wrong), true_labels=LABELS)
    data, record = prepare(known, make_settings("table", validation="clean"))
    assert record["wrong_in_train"] == 100
    assert record["wrong_in_validation"] == 0
    assert torch.equal(data.validation.labels, torch.from_numpy(LABELS)[data.held_out_indices])
    with pytest.raises(mlnt.InputError, match="needs the true labels"):
        prepare(mlnt.open_dataset((ROWS, wrong)), make_settings("table", validation="clean"))


def test_unknown_validation_noise_is_not_called_zero() -> None:
    data = mlnt.open_dataset((ROWS, LABELS), validation=(ROWS, LABELS), true_labels=LABELS)
    _, record = prepare(data, make_settings("table"))
    assert "wrong_in_validation" not in record


def test_a_feature_may_have_the_name_of_a_label(tmp_path: Path) -> None:
    lines = [f"{i % 5},{i % 3},{i % 2}" for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["x,y,label", *lines]) + "\n")
    mlnt.train(tmp_path / "train.csv", out=tmp_path / "run", **QUICK)
    (tmp_path / "new.csv").write_text("x,y\n1,2\n3,0\n")
    assert len(mlnt.predict(tmp_path / "run", tmp_path / "new.csv").predicted) == 2


def test_label_column_is_remembered(tmp_path: Path) -> None:
    lines = [f"{i % 5},{i % 2}" for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["x,kind", *lines]) + "\n")
    mlnt.train(tmp_path / "train.csv", label_column="kind", out=tmp_path / "run", **QUICK)
    assert mlnt.predict(tmp_path / "run", tmp_path / "train.csv").accuracy is not None
    (tmp_path / "new.csv").write_text("x\n1\n")
    assert mlnt.predict(tmp_path / "run", tmp_path / "new.csv").accuracy is None


def test_a_folder_with_other_files_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(mlnt.InputError, match="not an empty folder"):
        mlnt.train((ROWS, LABELS), out=tmp_path, **QUICK)
    assert (tmp_path / "report.html").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_brackets_in_names_are_no_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"[/b] word{i % 2},[red]{i % 2}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    out = tmp_path / "run[b]x"
    arguments = ["--epochs", "1", "--sets", "1", "--batch-size", "16", "--out", str(out)]
    assert cli.run(["train", str(tmp_path / "t.csv"), *arguments]) == 0
    assert cli.run(["issues", str(out)]) == 0
    assert "[red]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "x" * 5000],
        ["train", "digits", "--out", "x" * 5000],
        ["train", "digits", "--epochs", "1" + "0" * 400],
        ["train", "digits", "--device", "meta"],
        ["train", "."],
        ["bench", "--steps", "1", "--batch-size", "4", "--json", "no/such/folder.json"],
    ],
)
def test_odd_command_lines(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == 2
    assert capsys.readouterr().err.startswith("mlnt: ")


def test_tensors_that_do_not_fit() -> None:
    model = nn.Linear(2, 3)
    rows, target = torch.randn(4, 2), torch.full((4, 3), 1 / 3)
    with pytest.raises(mlnt.InputError, match=r"labels must lie in \[0, 2\], got 0 to 5"):
        mlnt.meta_gradient(model, rows, torch.tensor([[0, 1, 2, 5]]), target, 0.1)
    with pytest.raises(mlnt.InputError, match="rho must lie"):
        mlnt.NoiseTolerance(model, rho=50)
    with pytest.raises(mlnt.InputError, match=r"features must be \[B, D\]"):
        mlnt.synthetic_labels(torch.zeros(4).long(), torch.zeros(4))
    with pytest.raises(mlnt.InputError, match="update='summed'"):
        make_settings(update="summed", lr=0)
    with pytest.raises(mlnt.InputError, match="update='summed'"):
        make_settings(update="summed", led_lr=0)


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        ([0, 1], [[0.5, 0.5]], r"labels \[N\] and probabilities \[N, C\]"),
        ([0.5, 1.0], [[0.5, 0.5]] * 2, "class numbers"),
        (["a", "b"], [[0.5, 0.5]] * 2, r"labels must be class numbers, .* got \['a', 'b'\]"),
        ([0, 1], [["a", "b"]] * 2, "probabilities must be numbers, got"),
        ([0, 1], [[0.5, 0.5], [1.0]], "probabilities must be numbers, got"),
        ([0, 2], [[0.5, 0.5]] * 2, r"lie in \[0, 1\]"),
        ([0, 1], [[5.0, -3.0]] * 2, r"probabilities must lie in \[0, 1\]"),
        ([0, 1], [[np.nan, 1.0]] * 2, r"probabilities must lie in \[0, 1\]"),
    ],
)
def test_label_issues_of_nonsense(labels: list, probabilities: list, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.find_label_issues(labels, probabilities)


class Exploding(nn.Module):
    """Its weights become NaN by the very last step: no loss ever shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        logits = self.head(x)
        if self.training and self.calls == 3:
            logits.register_hook(lambda gradient: gradient * float("nan"))
        return logits


def test_weights_that_are_not_finite_stop_the_run(tmp_path: Path) -> None:
    with pytest.raises(mlnt.TrainingError, match="weights of the student became NaN or infinite"):
        mlnt.train(
            (ROWS, LABELS), model=Exploding, out=tmp_path / "run", validation_share=0.1, **QUICK
        )
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
