"""Label noise and the rate that comes out."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mlnt
from mlnt.config import Settings
from mlnt.data.noise import parse_noise, wrong_share
from mlnt.methods import Forward

CLASSES = ("cat", "dog", "bird")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_symmetric_noise_includes_the_own_class() -> None:
    labels = torch.arange(10).repeat(10_000)
    noisy = mlnt.symmetric_noise(labels, 0.5, 10, seeded())
    # 50 % asked for is 45 % wrong with ten classes; standard deviation 0.16 points here.
    assert wrong_share(noisy, labels) == pytest.approx(0.45, abs=0.008)
    into = torch.bincount(noisy[(labels == 3) & (noisy != 3)], minlength=10)
    assert into[3] == 0
    assert (into[torch.arange(10) != 3] > 400).all()


def test_asymmetric_noise_follows_the_mapping() -> None:
    labels = torch.arange(4).repeat(10_000)
    noisy = mlnt.asymmetric_noise(labels, 0.3, {0: 1, 2: 3, 3: 2}, seeded())
    assert torch.equal(noisy[labels == 1], labels[labels == 1])
    for source, target in {0: 1, 2: 3, 3: 2}.items():
        moved = noisy[labels == source]
        assert set(moved.tolist()) == {source, target}
        assert float((moved == target).double().mean()) == pytest.approx(0.3, abs=0.02)


def test_transition_matrix() -> None:
    labels = torch.arange(2).repeat(20_000)
    noisy = mlnt.transition_noise(labels, [[0.8, 0.2], [0.0, 1.0]], seeded())
    assert torch.equal(noisy[labels == 1], labels[labels == 1])
    assert float((noisy[labels == 0] == 1).double().mean()) == pytest.approx(0.2, abs=0.015)


@given(st.lists(st.integers(0, 6), max_size=60), st.floats(0, 1), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_properties(labels: list[int], rate: float, seed: int) -> None:
    before = torch.tensor(labels, dtype=torch.long)
    copy = before.clone()
    for noisy in (
        mlnt.symmetric_noise(before, rate, 7, seeded(seed)),
        mlnt.asymmetric_noise(before, rate, {1: 2, 6: 0}, seeded(seed)),
    ):
        assert noisy.shape == before.shape
        assert noisy.dtype == torch.long
        assert len(noisy) == 0 or (noisy.min() >= 0 and noisy.max() < 7)
    assert torch.equal(before, copy), "the labels given are not changed"
    assert torch.equal(mlnt.symmetric_noise(before, 0, 7), before)
    repeated = mlnt.symmetric_noise(before, rate, 7, seeded(seed))
    assert torch.equal(repeated, mlnt.symmetric_noise(before, rate, 7, seeded(seed)))


def test_arrays_come_back_as_arrays() -> None:
    noisy = mlnt.symmetric_noise(np.zeros(50, dtype=np.uint8), 1.0, 3, seeded())
    assert isinstance(noisy, np.ndarray)
    assert set(noisy.tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2, 1, 0])[::-1],
        np.array([0, 1, 2], dtype=">i4"),
        [0, 1, 2],
    ],
)
def test_labels_are_taken_by_position_whatever_holds_them(labels: Any) -> None:
    noisy = mlnt.symmetric_noise(labels, 1.0, 3, seeded())
    assert torch.equal(
        torch.as_tensor(noisy), mlnt.symmetric_noise(torch.arange(3), 1.0, 3, seeded())
    )
    turned = mlnt.asymmetric_noise(labels, 1.0, {0: 1, 2: 0}, seeded())
    assert turned.tolist() == [1, 1, 0]


def test_labels_of_pandas_with_another_index() -> None:
    pandas = pytest.importorskip("pandas", reason="the noise functions do not need pandas")
    labels = pandas.Series([0, 1, 2], index=[7, 8, 9])
    assert mlnt.asymmetric_noise(labels, 1.0, {0: 1, 2: 0}).tolist() == [1, 1, 0]
    assert mlnt.asymmetric_noise(labels.astype("Int64"), 1.0, {0: 1}).tolist() == [1, 1, 2]


def test_mapping_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="the noise functions do not need pandas")
    assert mlnt.asymmetric_noise([0, 1, 2], 1.0, pandas.Series({0: 1, 2: 0})).tolist() == [1, 1, 0]


def test_classes_that_no_label_has_may_be_in_a_mapping() -> None:
    mapping = {0: 10**13, 10**12: 2}
    assert mlnt.asymmetric_noise([0, 1], 1.0, mapping).tolist() == [10**13, 1]


def test_no_labels_are_no_labels_of_any_type() -> None:
    for empty in ([], np.zeros(0), torch.zeros(0)):
        for noisy in (
            mlnt.symmetric_noise(empty, 0.5, 3),
            mlnt.asymmetric_noise(empty, 0.5, {0: 1}),
            mlnt.transition_noise(empty, np.eye(3)),
        ):
            assert torch.as_tensor(noisy).shape == (0,)
            assert torch.as_tensor(noisy).dtype == torch.long


def test_noise_is_drawn_where_the_labels_are_not_on_the_default_device() -> None:
    labels = torch.arange(3).repeat(5)

    def drawn() -> list[list[int]]:
        return [
            mlnt.symmetric_noise(labels, 0.5, 3, seeded()).tolist(),
            mlnt.asymmetric_noise(labels, 0.5, {0: 1}, seeded()).tolist(),
            mlnt.transition_noise(labels, np.full((3, 3), 1 / 3), seeded()).tolist(),
        ]

    expected = drawn()
    with torch.device("meta"):
        assert drawn() == expected


LABELS = torch.zeros(3, dtype=torch.long)


def test_one_rounding_is_as_good_as_another() -> None:
    """A matrix for the noise may be given to the method that corrects for it, and the reverse."""
    rounded = torch.tensor([[0.99995, 0.0], [0.0, 1.00005]])
    mlnt.transition_noise(LABELS, rounded)
    Forward(nn.Linear(2, 2), Settings(), rounded)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mlnt.symmetric_noise(LABELS, 50, 3), "got 50; did you mean 0.5"),
        (
            lambda: mlnt.symmetric_noise(LABELS, "0.4", 3),
            r"noise rate must be one number in \[0, 1\], got '0.4'",
        ),
        (lambda: mlnt.symmetric_noise(LABELS, None, 3), "one number .* got None"),
        (
            lambda: mlnt.asymmetric_noise(LABELS, np.full((2, 1), 0.5), {0: 1}),
            "one number .* got a",
        ),
        (lambda: mlnt.asymmetric_noise(LABELS, torch.ones(2), {0: 1}), "one number .* got tensor"),
        (lambda: mlnt.symmetric_noise(LABELS, 0.5, True), "classes must be a whole .* got True"),
        (lambda: mlnt.symmetric_noise(LABELS, -0.1, 3), r"in \[0, 1\], got -0.1"),
        (lambda: mlnt.symmetric_noise(LABELS, float("nan"), 3), "got nan"),
        (
            lambda: mlnt.symmetric_noise(torch.tensor([3]), 0.5, 3),
            r"in \[0, 2\] for 3 classes, got 3",
        ),
        (lambda: mlnt.symmetric_noise(torch.tensor([-1]), 0.5, 3), "from 0 on, got -1"),
        (lambda: mlnt.symmetric_noise(torch.zeros(3), 0.5, 3), "class numbers"),
        (lambda: mlnt.asymmetric_noise(LABELS, 0.5, {}), "mapping is empty"),
        (lambda: mlnt.asymmetric_noise(LABELS, 0.5, {-1: 0}), "start at 0"),
        (lambda: mlnt.asymmetric_noise(LABELS, 0.5, [1, 2]), r"as \{3: 5, 5: 3\}, got \[1, 2\]"),
        (lambda: mlnt.asymmetric_noise(LABELS, 0.5, {0: 1.0}), "class numbers .* got 1.0"),
        (lambda: mlnt.asymmetric_noise(LABELS, 0.5, {"0": 1}), "class numbers .* got '0'"),
        (lambda: mlnt.symmetric_noise(["a", "b"], 0.5, 3), r"row of class numbers .*\['a', 'b'\]"),
        (
            lambda: mlnt.symmetric_noise(LABELS, 0.5, 3, generator=0),
            r"Generator\(\).manual_seed\(0",
        ),
        (lambda: mlnt.asymmetric_noise(LABELS, 0.5, {0: 1}, generator="a"), "torch.Generator, got"),
        (lambda: mlnt.symmetric_noise(LABELS, 0.5, 3.0), "classes must be a whole .* got 3.0"),
        (lambda: mlnt.symmetric_noise(LABELS, 0.5, 0), "from 1 on, got 0"),
        (lambda: mlnt.transition_noise(LABELS, [[1, 0], [0]]), "transition matrix must be numbers"),
        (lambda: mlnt.transition_noise(LABELS, [[0.5, 0.4], [0, 1]]), "row 0 sums"),
        (lambda: mlnt.transition_noise(LABELS, [[1.0, 0.0]]), "must be square"),
        (lambda: mlnt.transition_noise(LABELS, [[1.5, -0.5], [0, 1]]), "negative.*got -0.5"),
        (lambda: mlnt.transition_noise(LABELS, [[1, np.nan], [0, 1]]), "NaN or infinite, got nan"),
        (lambda: mlnt.transition_noise(LABELS, np.zeros((0, 0))), r"\[C, C\], got \[0, 0\]"),
    ],
)
def test_bad_arguments(call, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        call()


def test_noise_as_the_user_writes_it(tmp_path: Path) -> None:
    labels = torch.arange(3).repeat(100)
    assert torch.equal(parse_noise("none", CLASSES).apply(labels, seeded()), labels)
    swapped = parse_noise("asymmetric:1.0:cat>dog,1>0", CLASSES).apply(labels, seeded())
    assert torch.equal(swapped, torch.tensor([1, 0, 2]).repeat(100))
    usual = parse_noise("asymmetric:1.0", CLASSES, {2: 0}).apply(labels, seeded())
    assert torch.equal(usual, torch.tensor([0, 1, 0]).repeat(100))
    matrix = tmp_path / "matrix.csv"
    matrix.write_text("0,1,0\n0,0,1\n1,0,0\n", encoding="utf-8-sig")
    turned = parse_noise(f"matrix:{matrix}", CLASSES).apply(labels, seeded())
    assert torch.equal(turned, torch.tensor([1, 2, 0]).repeat(100))


WINES = ('Barbera "d\'Asti"', "Dolcetto>2,5", "Grignolino, rosso")


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ('Barbera "d\'Asti">Grignolino, rosso', {0: 2}),
        ("Grignolino, rosso > Dolcetto>2,5", {2: 1}),
        ("Dolcetto>2,5>Grignolino, rosso,Grignolino, rosso>0", {1: 2, 2: 0}),
        ("1>2,2>1", {1: 2, 2: 1}),
    ],
)
def test_classes_whose_names_hold_commas_and_arrows(pairs: str, expected: dict[int, int]) -> None:
    labels = torch.arange(3)
    noisy = parse_noise(f"asymmetric:1:{pairs}", WINES).apply(labels, seeded())
    assert noisy.tolist() == [expected.get(number, number) for number in range(3)]


@pytest.mark.parametrize(
    ("classes", "hint"),
    [
        (CLASSES, "'asymmetric:0.4:cat>bird'"),
        (WINES, "'asymmetric:0.4:0>2'"),
        (("a;b", "x", "0"), "'asymmetric:0.4:a;b>0'"),  # 0 would be the last of them
    ],
)
def test_the_example_can_be_typed_into_a_shell(classes: tuple[str, ...], hint: str) -> None:
    with pytest.raises(mlnt.InputError, match=f"name them as in {hint}$"):
        parse_noise("asymmetric:0.4", classes)
    (typed,) = shlex.split(hint)
    noisy = parse_noise(typed.replace("0.4", "1"), classes).apply(torch.arange(3), seeded())
    assert noisy.tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("symetric:0.5", "did you mean 'symmetric'"),
        ("symmetric", "needs a rate, as in symmetric:0.4"),
        ("symmetric:70", "did you mean 0.7"),
        ("asymmetric:0.4", "no usual confusions; name them"),
        ("asymmetric:0.4:cat>dgo", "did you mean 'dog'"),
        ("asymmetric:0.4:cat", "class>class"),
        ("asymmetric:0.4:cat>dog,", "class>class, got ''"),
        ("asymmetric:0.4:cat>dog,brid>cat", "unknown class 'brid'; did you mean 'bird'"),
        ("matrix:nowhere.csv", "no transition matrix"),
    ],
)
def test_noise_misspelt(text: str, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        parse_noise(text, CLASSES)


def test_scalars_of_torch_are_numbers() -> None:
    labels_N = torch.tensor([0, 1, 2, 3] * 5)
    generator = torch.Generator().manual_seed(0)
    found = mlnt.symmetric_noise(labels_N, 0.5, labels_N.max() + 1, generator)
    generator.manual_seed(0)
    assert torch.equal(found, mlnt.symmetric_noise(labels_N, 0.5, 4, generator))
    moved = mlnt.asymmetric_noise(labels_N, 1.0, {1: torch.tensor(2)})
    assert moved.tolist() == [0, 2, 2, 3] * 5
    features_BD = torch.randn(20, 2, generator=generator)
    assert mlnt.synthetic_labels(labels_N, features_BD, sets=torch.tensor(3)).shape == (3, 20)
