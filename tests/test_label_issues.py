"""What `find_label_issues` gives back: in a line, as a frame, and when it is in doubt."""

import csv
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mlnt
from mlnt.label_issues import COLUMNS, write_label_issues

LABELS = [0, 1, 1, 0]
PROBABILITIES = [[0.9, 0.1], [0.2, 0.8], [0.95, 0.05], [0.8, 0.2]]


def test_in_one_line() -> None:
    issues = mlnt.find_label_issues(LABELS, PROBABILITIES)
    low, high = issues.noise_interval
    assert repr(issues) == (
        "LabelIssues(4 labels of 2 classes, 1 flagged, "
        f"noise rate {issues.noise_rate:.3f} ({low:.3f} to {high:.3f}))"
    )


def test_frame_has_the_columns_of_the_file_that_are_known(tmp_path: Path) -> None:
    issues = mlnt.find_label_issues(LABELS, PROBABILITIES)
    frame = issues.to_frame()
    assert list(frame.columns) == [name for name in COLUMNS if name not in ("sample", "kept")]
    assert frame["index"].tolist() == issues.positions.tolist()
    assert frame["index"][0] == 2
    write_label_issues(tmp_path / "issues.csv", issues, ("0", "1"), [None] * 4, None)
    with (tmp_path / "issues.csv").open(newline="") as file:
        for row, (_, ours) in zip(csv.DictReader(file), frame.iterrows(), strict=True):
            for name in frame.columns:
                assert float(row[name]) == pytest.approx(ours[name], abs=1e-6), name


def test_frame_of_nothing() -> None:
    issues = mlnt.find_label_issues(torch.empty(0).long(), torch.empty(0, 3))
    assert issues.to_frame().shape == (0, 6)
    assert repr(issues).startswith("LabelIssues(0 labels of 3 classes, 0 flagged")


def test_frame_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    issues = mlnt.find_label_issues(LABELS, PROBABILITIES)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mlnt.InputError, match=r"needs pandas \(pip install pandas\)"):
        issues.to_frame()


def drawn(count: int, sure: float, spread: float) -> tuple[Tensor, Tensor]:
    """Labels of four classes, 20 % of them any; a model that takes them for what they look like."""
    generator = torch.Generator().manual_seed(0)
    truth_N = torch.randint(4, (count,), generator=generator)
    logits_NC = spread * torch.randn(count, 4, generator=generator).double()
    logits_NC[torch.arange(count), truth_N] += 1
    return mlnt.symmetric_noise(truth_N, 0.2, 4, generator), (sure * logits_NC).softmax(1)


def test_a_model_that_is_surer_than_it_is_right_is_named() -> None:
    labels_N, probabilities_NC = drawn(500, sure=10, spread=1)
    with pytest.warns(UserWarning, match=r"probability of 0\.9\d, but agrees with 4\d% of the"):
        issues = mlnt.find_label_issues(labels_N, probabilities_NC)
    assert "too sure" in issues.doubt
    assert repr(issues).endswith(", in doubt)")


def test_a_weak_model_is_named() -> None:
    labels_N, probabilities_NC = drawn(500, sure=0.5, spread=1)
    with pytest.warns(UserWarning, match=r"agrees with only 4\d% of the labels, .* is vague"):
        mlnt.find_label_issues(labels_N, probabilities_NC)


def test_nothing_is_said_of_a_good_model_of_few_labels_or_of_those_it_has_learnt() -> None:
    labels_N, probabilities_NC = drawn(500, sure=4, spread=0.2)
    too_sure_NC = drawn(500, sure=10, spread=1)[1]
    nothing_N, features_ND = torch.zeros(500), torch.eye(4)[labels_N]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mlnt.find_label_issues(labels_N, probabilities_NC).doubt == ""
        assert mlnt.find_label_issues(labels_N[:29], too_sure_NC[:29]).doubt == ""
        found = mlnt.find_label_issues(labels_N, too_sure_NC, features_ND, nothing_N)
        assert found.doubt == ""
