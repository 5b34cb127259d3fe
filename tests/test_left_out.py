"""Networks and filters chosen by labels that short trainings did not learn."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import mlnt
from mlnt.config import make_settings
from mlnt.data.dataset import Split
from mlnt.data.encoding import TableEncoder, encoder_from_json, encoder_to_json
from mlnt.distributed import ALL_ALONE
from mlnt.left_out import FEWEST, agreeing, network_for_table, proof_of
from mlnt.networks import MLP, BinnedMLP, Bins
from mlnt.ready import make_ready
from mlnt.terminal import TerminalProgress

QUICK = {"epochs": 12, "batch_size": 64}


def rows(count: int, columns: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, size=(count, columns)).astype(np.float32)


def with_noise(labels: np.ndarray, rate: float, classes: int = 2) -> np.ndarray:
    generator = np.random.default_rng(1)
    other = (labels + generator.integers(1, classes, len(labels))) % classes
    return np.where(generator.random(len(labels)) < rate, other, labels)


class TestBins:
    def test_how_far_a_cell_has_come(self) -> None:
        bins = Bins([(0.0, 1.0, 3.0), (), (-1.0, -1.0, 2.0)])
        cells = torch.tensor([[0.25, 7.0, 0.5], [2.0, 7.0, -9.0], [99.0, 7.0, 99.0]])
        made = bins(cells)
        torch.testing.assert_close(made[:, :3], cells)
        # Two bins of the first column, one of the third, whose first is empty.
        means, stds = torch.tensor([0.75, 0.25, 0.25]), torch.tensor(3 / 16).sqrt()
        expected = torch.tensor([[0.25, 0, 0.5], [1, 0.5, 0], [1, 1, 1]])
        torch.testing.assert_close(made[:, 3:] * stds + means, expected)

    def test_of_the_data_they_have_no_mean_and_unit_variance(self) -> None:
        numbers = np.random.default_rng(0).lognormal(size=(5000, 2))
        encoder = TableEncoder.fit(numbers)
        made = Bins(encoder.edges)(encoder.encode(numbers))[:, 2:].unflatten(1, (2, 64))
        assert made.mean(dim=0).abs().max() < 0.1
        # In the outer ones, which are long, few cells are near either end.
        assert (made[..., 1:-1].std(dim=0) - 1).abs().max() < 0.1

    def test_columns_of_few_values(self) -> None:
        flags, few = np.arange(90) % 2, np.arange(90) % 3
        encoder = TableEncoder.fit(np.stack([flags, few, np.zeros(90)], axis=1).astype(float))
        assert [len(edges) for edges in encoder.edges] == [0, 65, 0]
        network = BinnedMLP(3, 2, encoder.edges)
        assert network[1].in_features == 3 + 2
        assert network(torch.zeros(4, 3)).shape == (4, 2)
        assert BinnedMLP(1, 2, [()])(torch.zeros(4, 1)).shape == (4, 2)

    def test_a_wide_table_has_none(self) -> None:
        encoder = TableEncoder.fit(rows(20, 257))
        assert encoder.edges == ()
        with pytest.raises(mlnt.InputError, match=r"more than 256 columns.*--model mlp"):
            mlnt.models.build_model("bins8", encoder, 2)


def test_edges_travel_as_json_and_others_are_refused() -> None:
    encoder = TableEncoder.fit(rows(500, 2))
    values = json.loads(json.dumps(encoder_to_json(encoder)))
    assert encoder_from_json(values) == encoder
    edges = values["edges"]
    falling = [edges[0], edges[1][::-1]]
    for bad in (
        edges[:1],
        [edges[0][:-1], ()],
        falling,
        [[None] * 65, ()],
        [["0"] * 65, ()],
        [1, 2],
    ):
        with pytest.raises((ValueError, TypeError)):
            encoder_from_json({**values, "edges": bad})
    assert encoder_from_json({k: v for k, v in values.items() if k != "edges"}).edges == ()


def split_of(cells: np.ndarray, labels: np.ndarray) -> Split:
    return Split(torch.from_numpy(cells), torch.from_numpy(labels))


def new_mlp() -> nn.Module:
    return MLP(4, 2, width=32)


class TestAgreeing:
    settings = make_settings("table", **QUICK)

    def test_labels_by_chance_cannot_be_agreed_with(self) -> None:
        """Whatever is kept: nobody has seen the labels that are asked about."""
        train = split_of(rows(900), np.random.default_rng(3).integers(0, 2, 900))

        def those_learnt_by_heart(model: nn.Module, part: Split) -> tuple[Tensor, None]:
            answers = model(part.inputs).argmax(dim=1)
            return (answers == part.labels).nonzero().squeeze(1), None

        of_all, of_kept = agreeing(new_mlp, train, self.settings, 0, those_learnt_by_heart)
        for found in (of_all, of_kept):
            assert len(found) == 900
            assert abs(found.double().mean() - 0.5) < 4 * 0.5 / 900**0.5

    def test_the_seed_decides_and_no_generator_moves(self) -> None:
        cells = rows(400)
        train = split_of(cells, (cells[:, 0] > 0).astype(np.int64))
        before = torch.random.get_rng_state()
        first, again = (agreeing(new_mlp, train, self.settings, 5) for _ in range(2))
        assert torch.equal(first, again)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert first.double().mean() > 0.9

    def test_a_filter_holds_where_it_takes_wrong_labels(self) -> None:
        cells = rows(900)
        truth = (cells[:, 0] > 0).astype(np.int64)
        given = with_noise(truth, 0.4)
        train = Split(torch.from_numpy(cells), torch.from_numpy(given), torch.from_numpy(truth))

        def right(_: nn.Module, part: Split) -> tuple[Tensor, None]:
            assert part.true_labels is not None
            return (part.labels == part.true_labels).nonzero().squeeze(1), None

        def wrong(_: nn.Module, part: Split) -> tuple[Tensor, None]:
            assert part.true_labels is not None
            return (part.labels != part.true_labels).nonzero().squeeze(1), None

        good = proof_of(new_mlp, train, self.settings, 0, right)
        bad = proof_of(new_mlp, train, self.settings, 0, wrong)
        assert good is not None
        assert bad is not None
        assert good.holds
        assert good.all == bad.all
        assert not bad.holds
        few = train.take(torch.arange(FEWEST - 1))
        assert proof_of(new_mlp, few, self.settings, 0, right) is None


def chosen_for(cells: np.ndarray, labels: np.ndarray, **given: object) -> tuple[str, str]:
    dataset = mlnt.open_dataset((cells, labels))
    ready = make_ready(dataset, None, None, {**QUICK, **given}, False, ALL_ALONE)
    return ready.settings.model, ready.reasons.get("model", "")


class TestNetworkForATable:
    steps = rows(1500, 3)
    stairs = ((steps[:, 0] * 5).astype(int) + (steps[:, 1] * 5).astype(int)) % 2

    def test_bins_for_thresholds(self) -> None:
        name, reason = chosen_for(self.steps, with_noise(self.stairs, 0.2), epochs=30)
        assert name.startswith("bins")
        assert "mlp" in reason
        assert "%" in reason

    def test_none_for_a_slope(self) -> None:
        cells = rows(900, 6)
        product = cells[:, 0] * cells[:, 1] + cells[:, 2] * cells[:, 3]
        assert chosen_for(cells, (product > 0).astype(int), epochs=30)[0] == "mlp"

    @pytest.mark.parametrize("given", [{"model": "mlp"}, {"weights": "none", "model": "bins8"}])
    def test_what_the_user_says_comes_first(self, given: dict[str, str]) -> None:
        assert chosen_for(self.steps, self.stairs, **given) == (given["model"], "")

    def test_nothing_can_be_told_of_few(self) -> None:
        few = self.steps[:200], self.stairs[:200]
        assert chosen_for(*few) == ("mlp", "")
        dataset = mlnt.open_dataset(few)
        found = network_for_table(dataset, make_settings("table"), 0)
        assert found is None


@pytest.mark.parametrize("model", ["bins8", "bins64"])
def test_a_run_with_bins_predicts(model: str, tmp_path: Path) -> None:
    cells = rows(400)
    cells[:, 1] = (cells[:, 1] * 3).round()  # of few values
    labels = (cells[:, 0] > 0).astype(int)
    training = mlnt.train(
        (cells, labels), model=model, out=tmp_path / "run", epochs=2, iterations=1
    )
    expected = training.predict_probabilities(cells)
    found = mlnt.predict(tmp_path / "run", cells).probabilities
    torch.testing.assert_close(found, expected)
    # A stranger's folder may claim other edges, or none.
    config = tmp_path / "run" / "config.json"
    claimed = json.loads(config.read_text("utf-8"))
    edges = claimed["data"]["encoder"].pop("edges")
    for others in ([], [edges[0], edges[0]]):
        claimed["data"]["encoder"]["edges"] = others
        config.write_text(json.dumps(claimed), "utf-8")
        with pytest.raises(mlnt.InputError):
            mlnt.predict(tmp_path / "run", cells)


def test_a_run_whose_filter_is_not_worth_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The label is a coin that one column bends a little: all doubt is about hard samples."""
    cells = rows(900)
    labels = (np.random.default_rng(2).random(900) < 0.5 + 0.3 * cells[:, 0]).astype(int)
    stream = io.StringIO()
    watcher = TerminalProgress(Console(file=stream, width=200))
    training = mlnt.train(
        (cells, labels), model="bins64", iterations=2, watchers=[watcher], **QUICK
    )
    assert training.summary["filters"]
    report = training.summary["filters"][0]
    proof = report["proof"]
    if proof["kept"] < proof["all"]:
        assert report["kept"] == report["of"]
        assert "no label is left out" in stream.getvalue()
    else:
        assert report["kept"] < report["of"]
        assert "no label is left out" not in stream.getvalue()
