"""Features learnt without labels, and what begins with them."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import mlnt
from clothing_tree import make_small_tree
from mlnt import recipes
from mlnt.cli import run as command
from mlnt.config import Settings, make_settings
from mlnt.data import views
from mlnt.data.batches import Batch
from mlnt.errors import Stopped
from mlnt.meta.features import logits_and_features, split_at_features
from mlnt.methods import Contrastive, Rates
from mlnt.methods.base import Method
from mlnt.methods.contrastive import TEMPERATURE, contrast, contrastive_settings
from mlnt.networks import PreActResNet32, SmallConv
from mlnt.resnet import resnet18
from mlnt.runs import RunFolder
from mlnt.training import Stage, StageResult, Trainer
from small_runs import few_digits, leave_out_reports
from test_resume import StopAfter, assert_same_end

RATES = Rates(lr=0.1, eta=0.1, gamma=0.9, lam=0.0)


def drawing(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TestViews:
    pictures = torch.randn(64, 3, 8, 8, generator=drawing(5))

    def test_a_view_is_drawn_anew_for_each_picture_and_by_the_generator_alone(self) -> None:
        same = self.pictures[:1].repeat(64, 1, 1, 1)
        found, again = (views.random_view(same, drawing(1)) for _ in range(2))
        assert found.shape == same.shape
        assert torch.equal(found, again)
        assert len({tuple(view.flatten().tolist()) for view in found}) == 64

    def test_a_part_is_a_rectangle_of_the_picture_blown_up(self) -> None:
        """Of a picture whose values are its coordinates, which can be read off the part."""
        side = 32
        along = torch.linspace(-1 + 1 / side, 1 - 1 / side, side)
        rows, columns = torch.meshgrid(along, along, indexing="ij")
        picture = torch.stack([rows, columns]).expand(500, -1, -1, -1)
        part = views.random_part(picture, drawing())[:, :, 1:-1, 1:-1]  # not beyond its rim
        rows, columns = part.unbind(1)
        assert_close(rows, rows[:, :, :1].expand_as(rows))
        assert_close(columns, columns[:, :1].expand_as(columns))
        height = (rows[:, -1, 0] - rows[:, 0, 0]) / (along[-2] - along[1])
        width = (columns[:, 0, -1] - columns[:, 0, 0]) / (along[-2] - along[1])
        area, stretch = height * width, width / height
        assert 0.19 < area.min() < 0.25
        assert area.max() > 0.9
        assert abs(float(area.mean()) - 0.6) < 0.05
        assert 1.2 < stretch.max() < views.MOST_STRETCH + 0.01
        assert 1 / views.MOST_STRETCH - 0.01 < stretch.min() < 0.83

    def test_the_whole_picture_is_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(views, "LEAST_AREA", 1.0)
        monkeypatch.setattr(views, "MOST_STRETCH", 1.0)
        assert_close(views.random_part(self.pictures, drawing()), self.pictures)

    def test_places_are_exact_whatever_a_network_computes_in(self) -> None:
        expected = views.random_part(self.pictures, drawing())
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(views.random_part(self.pictures, drawing()), expected)

    def test_nothing_beyond_the_rim_is_seen(self) -> None:
        white = torch.ones(200, 1, 6, 6)
        assert_close(views.random_part(white, drawing()), white)

    def test_colours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = views.random_colours(self.pictures, drawing())
        is_grey = ((found - found.mean(dim=1, keepdim=True)).abs().amax(dim=(1, 2, 3)) < 1e-5).sum()
        assert 4 <= is_grey <= 24, "a fifth of 64"
        monkeypatch.setattr(views, "COLOURED", 0.0)
        monkeypatch.setattr(views, "GREY", 0.0)
        assert_close(views.random_colours(self.pictures, drawing()), self.pictures)
        monkeypatch.setattr(views, "GREY", 1.0)
        expected = self.pictures.mean(dim=1, keepdim=True).expand_as(self.pictures)
        assert_close(views.random_colours(self.pictures, drawing()), expected)


def test_contrast_by_its_definition() -> None:
    projected_VP = torch.randn(10, 4, generator=drawing(), dtype=torch.float64)
    total = 0.0
    for view in range(10):
        other = (view + 5) % 10
        similar = {
            another: math.exp(
                float(torch.cosine_similarity(projected_VP[view], projected_VP[another], dim=0))
                / TEMPERATURE
            )
            for another in range(10)
            if another != view
        }
        total -= math.log(similar[other] / sum(similar.values()))
    assert contrast(projected_VP).item() == pytest.approx(total / 10, rel=1e-12)


def log_softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 10), nn.LogSoftmax(1))


class Tied(nn.Module):
    """Whose last layer is also its first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.last.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1)).relu())


class Twice(nn.Module):
    """Whose last layer is called more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.last(x.flatten(1)).relu())


class Asking(nn.Module):
    """Which asks its last layer for more than logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.flatten(1))[:, : self.last.in_features])


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 3))
    model[1].requires_grad_(False)
    return model


MORE = "its features and one last layer"
WITHOUT_FEATURES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "no linear layer": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()),
        "ends with a linear layer",
    ),
    "only a linear layer": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)),
        "something to train before",
    ),
    "frozen": (frozen, "something to train before"),
    "log softmax": (log_softmax, MORE),
    "convolution behind it": (
        lambda: nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 9),
            nn.Unflatten(1, (3, 3)),
            nn.Conv1d(3, 1, 1),
            nn.Flatten(),
        ),
        MORE,
    ),
    "tied": (Tied, MORE),
    "twice": (Twice, MORE),
    "asking": (Asking, MORE),
}


class TestSplit:
    @pytest.mark.parametrize("make", [SmallConv, PreActResNet32, resnet18])
    def test_the_parts_are_the_whole(self, make: Any) -> None:
        model, inputs = make(3, 5), torch.randn(2, 3, 16, 16, generator=drawing())
        model.eval()
        list(model.modules())[2].train()
        modes = [module.training for module in model.modules()]
        encoder, last = split_at_features(model, inputs)
        assert [module.training for module in model.modules()] == modes
        model.eval(), encoder.eval()
        logits_BC, features_BD = logits_and_features(model, inputs)
        assert torch.equal(encoder(inputs), features_BD)
        assert torch.equal(last(encoder(inputs)), logits_BC)

    def test_parameters_and_statistics_are_shared(self) -> None:
        model, inputs = SmallConv(1, 5), torch.randn(4, 1, 8, 8, generator=drawing())
        encoder, last = split_at_features(model, inputs)
        found = {id(p) for p in (*encoder.parameters(), *last.parameters())}
        assert found == {id(p) for p in model.parameters()}
        before = [buffer.clone() for buffer in model.buffers()]
        encoder.train()(inputs)
        assert all(not torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))

    @pytest.mark.parametrize("name", WITHOUT_FEATURES)
    def test_a_network_that_is_something_else(self, name: str) -> None:
        make, message = WITHOUT_FEATURES[name]
        with pytest.raises(mlnt.InputError, match=message):
            split_at_features(make(), torch.randn(2, 1, 8, 8, generator=drawing()))

    def test_is_told_before_training_with_the_way_out(self, tmp_path: Path) -> None:
        with pytest.raises(mlnt.InputError, match="weights='none' can be used"):
            mlnt.train(few_digits(0, 64), model=log_softmax(), weights="self", out=tmp_path / "run")
        assert not (tmp_path / "run").exists()


def few_steps(labels: Tensor, steps: int = 3) -> Contrastive:
    torch.manual_seed(0)
    settings = make_settings("digits", flip=True)
    pictures = torch.randn(32, 1, 8, 8, generator=drawing(3))
    method = Contrastive(SmallConv(1, 10, width=4), settings, pictures[:2], drawing())
    batch = Batch(torch.arange(32), pictures, labels, pictures)
    for _ in range(steps):
        method.step(batch, batch, RATES)
    return method


def test_labels_reach_nothing() -> None:
    one, other = few_steps(torch.arange(32) % 10), few_steps(torch.arange(32) // 4)
    begun = few_steps(torch.arange(32) % 10, steps=0)
    for part in ("encoder", "projection", "last"):
        for name, p in getattr(one, part).named_parameters():
            assert torch.equal(p, getattr(other, part).get_parameter(name)), name
            is_trained = not torch.equal(p, getattr(begun, part).get_parameter(name))
            assert is_trained == (part != "last"), name


@pytest.mark.parametrize(
    ("samples", "batch_size", "self_epochs", "expected"),
    [
        (45_000, 128, 96, (512, 96, 0.4)),
        (1215, 128, "same", (151, 40, 0.2 * math.sqrt(151 / 128))),
        (100, 64, "same", (64, 40, 0.2)),
    ],
)
def test_settings(samples: int, batch_size: int, self_epochs: Any, expected: Any) -> None:
    given = {"batch_size": batch_size, "self_epochs": self_epochs, "crop_padding": 4, "cutout": 2}
    settings = make_settings("digits", **given)
    found = contrastive_settings(settings, samples)
    assert (found.batch_size, found.epochs, found.lr) == expected
    changed = {"batch_size": batch_size, "epochs": 40, "lr": 0.2, "crop_padding": 4, "cutout": 2}
    assert (found.crop_padding, found.cutout) == (0, 0)
    assert dataclasses.replace(found, **changed) == settings


def test_features_of_the_digits() -> None:
    """A linear layer that learnt half of its labels wrong; on random features as a comparison."""
    found = {}
    for epochs, lr in ((1, 0.0), (25, 0.2)):
        settings = {"noise": "symmetric:0.5", "validation": "clean", "seed": 2, "sets": 1}
        training = mlnt.train(
            "digits", weights="self", self_epochs=epochs, lr=lr, epochs=1, iterations=1, **settings
        )
        (row,) = [r for r in training.summary["models"] if r["method"] == "contrastive"]
        assert row["best_epoch"] == epochs
        assert row["best"] == row["last"]
        rows = [r for r in training.history if r["method"] == "contrastive"]
        assert all("contrast" in r and "student" not in r for r in rows)
        found[lr] = row["best"]
    assert found[0.2] > max(90, found[0.0] + 3)


def test_a_frozen_last_layer_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Beginnings(monkeypatch)
    model = SmallConv(1, 10, width=4)
    last = split_at_features(model, torch.zeros(2, 1, 8, 8))[1]
    last.requires_grad_(False)
    given = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 64}
    mlnt.train(few_digits(0, 320), model=model, weights="self", method="cross_entropy", **given)
    (name,) = [k for k, v in found.begun["cross_entropy"].items() if v.shape == last.weight.shape]
    assert torch.equal(found.begun["cross_entropy"][name], last.weight)


class Beginnings:
    """Of each stage: what its network knows before the first step, and the weights at its end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.begun: dict[str, dict[str, Tensor]] = {}
        self.ended: dict[str, dict[str, Tensor]] = {}
        self.settings: dict[str, Settings] = {}
        original = Trainer.run

        def spy(
            trainer: Trainer, stage: Stage, method: Method, kept: Tensor | None = None
        ) -> StageResult:
            model = method.models["student"]
            self.begun[stage.name] = {k: v.clone() for k, v in model.state_dict().items()}
            result = original(trainer, stage, method, kept)
            self.ended[stage.name] = {k: v.clone() for k, v in model.state_dict().items()}
            self.settings[stage.name] = trainer.settings
            return result

        patch.setattr(Trainer, "run", spy)


@pytest.mark.parametrize("method", ["mlnt", "forward", "iterative"])
def test_all_networks_begin_with_them(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Beginnings(monkeypatch)
    given = {"epochs": 1, "self_epochs": 2, "iterations": 2, "sets": 1, "batch_size": 64}
    training = mlnt.train(few_digits(0, 320), method=method, weights="self", **given)
    stages = list(found.begun)
    assert stages[0] == "contrastive"
    assert len(stages) > 2
    learnt, first = found.ended["contrastive"], found.begun[stages[1]]
    for stage in stages[2:]:
        assert all(torch.equal(found.begun[stage][key], first[key]) for key in first), stage
    differing = {key for key in learnt if not torch.equal(first[key], learnt[key])}
    assert {tuple(first[key].shape) for key in differing} == {(10, 128), (10,)}, "the last layer"
    assert not any(first[key].any() for key in differing)
    assert [row["method"] for row in training.history[:2]] == ["contrastive"] * 2
    assert {s.batch_size for s in found.settings.values()} == {64}, "288 samples are few"
    assert training.history[-1]["method"] == method
    # One epoch each may teach less than the features hold: the best of all is deployed.
    assert training.summary["chosen"]["method"] in ("contrastive", method)


@pytest.mark.parametrize(
    ("noise", "self_epochs", "epochs", "width", "is_led"),
    [("symmetric:0.9", 30, 2, 16, True), ("none", 1, 15, 2, False)],
)
def test_they_lead_where_labels_do_harm(
    noise: str, self_epochs: int, epochs: int, width: int, is_led: bool
) -> None:
    torch.manual_seed(0)
    given = {"epochs": epochs, "self_epochs": self_epochs, "iterations": 2, "sets": 1, "seed": 1}
    given |= {"validation": "clean", "validation_share": 0.3, "weights": "self", "noise": noise}
    given["lr"] = 0.5 if is_led else 0.2
    training = mlnt.train("digits", model=SmallConv(1, 10, width=width), **given)
    by_stage = {row["method"]: row["validation"] for row in training.summary["models"][:2]}
    assert (by_stage["contrastive"] > by_stage["cross_entropy"]) == is_led
    filters = training.summary["filters"]
    assert [f["after_iteration"] for f in filters] == ([0, 1] if is_led else [1])
    if is_led:
        assert filters[0]["wrong_among_kept"] < 60, "of all labels 82"


def test_pictures_on_disk(tmp_path: Path) -> None:
    tree = make_small_tree(tmp_path / "clothing1m", per_class=16, classes=3)
    given = {"model": "small_conv", "image_size": 16, "epochs": 1, "iterations": 1, "sets": 1}
    given |= {"self_epochs": 6, "batch_size": 16, "workers": 0, "lr": 0.1}
    training = mlnt.train(tree, preset="image", weights="self", **given)
    rows = [row for row in training.history if row["method"] == "contrastive"]
    assert len(rows) == 6
    assert rows[-1]["contrast"] < rows[0]["contrast"]
    assert all(0 <= row["waiting_share"] <= 1 for row in rows)


def test_goes_on_in_the_middle_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out_reports(monkeypatch)
    given = {"epochs": 1, "self_epochs": 2, "iterations": 1, "sets": 1, "batch_size": 64}
    data = few_digits(0, 320)

    def train(folder: Path, **options: Any) -> None:
        mlnt.train(data, out=folder, weights="self", **given, **options)

    train(tmp_path / "whole")
    for epochs, steps in ((0, 2), (1, 1), (2, 1)):
        folder = tmp_path / f"run-{epochs}-{steps}"
        with pytest.raises(Stopped):
            train(folder, watchers=[StopAfter(epochs, steps)])
        train(folder, resume=True)
        assert_same_end(folder, tmp_path / "whole")


def test_goes_on_in_an_iteration_that_they_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_reports(monkeypatch)
    choose_stage = recipes.choose_stage
    monkeypatch.setattr(
        recipes,
        "choose_stage",
        lambda stages, *others, **named: (
            stages[-1]
            if stages[-1].stage.method == "contrastive"
            else choose_stage(stages, *others, **named)
        ),
    )
    given = {"epochs": 1, "iterations": 2, "sets": 1, "batch_size": 64, "noise": "symmetric:0.4"}
    data = few_digits(0, 320)
    mlnt.train(data, out=tmp_path / "whole", weights="self", **given)
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        mlnt.train(data, out=folder, weights="self", watchers=[StopAfter(2, 2)], **given)
    mlnt.train(data, out=folder, weights="self", resume=True, **given)
    assert_same_end(folder, tmp_path / "whole")
    filters = RunFolder(folder).read_json("summary.json")["filters"]
    assert [f["after_iteration"] for f in filters] == [0, 1]


def test_with_scikit_learn() -> None:
    pictures, labels = few_digits(0, 320)
    given = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 64, "random_state": 0}
    fitted = mlnt.MLNTClassifier(weights="self", self_epochs=2, **given).fit(pictures, labels)
    assert [row["method"] for row in fitted.history_] == ["contrastive"] * 2 + [
        "cross_entropy",
        "mlnt",
    ]


def test_what_is_no_picture_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    points = Path(__file__).parent / "golden" / "points.csv"
    assert command(["train", str(points), "--weights", "self"]) == 2
    assert "these data are none" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == [], "no folder of a run that never began"
