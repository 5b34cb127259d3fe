"""What is odd about columns and the names of classes is said before a training."""

from pathlib import Path

import numpy as np
import pytest
import torch

import mlnt
from mlnt.data.oddities import few_of, span
from mlnt.terminal import describe_data

TEXTS = [f"the {i} quick brown foxes" for i in range(40)]
CITIES = ["Oslo", "New York"] * 20
NUMBERS = np.random.default_rng(0).normal(size=(40, 6))


def write(path: Path, columns: dict[str, list]) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(str(cell) for cell in row) for row in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def table(path: Path, **more: list) -> Path:
    columns = {f"f{i}": NUMBERS[:, i].tolist() for i in range(6)}
    return write(path, {**more, **columns, "label": ["x", "y"] * 20})


def notes(path: Path, **options: str) -> list[str]:
    lines = describe_data(mlnt.open_dataset(path, **options))
    return [line.removeprefix("  note: ") for line in lines if "few: expect" not in line]


def test_names_in_short() -> None:
    assert span(["a"]) == "a"
    assert span(list("abcde")) == "a, b, c, d, e"
    assert span(list("abcdef")) == "a … f"
    assert few_of(list("abcde")) == "a, b, c, d, e"
    assert few_of([str(i) for i in range(145)]) == "0, 1, 2, 3, 4 and 140 more"


def test_the_columns_are_named(tmp_path: Path) -> None:
    assert notes(table(tmp_path / "t.csv"))[1] == "  6 columns: f0 … f5"
    one = write(tmp_path / "one.csv", {"f0": NUMBERS[:, 0].tolist(), "label": [0, 1] * 20})
    assert notes(one)[1] == "  1 column: f0"
    arrays = mlnt.open_dataset((NUMBERS, [0, 1] * 20))
    assert not any("column" in line for line in describe_data(arrays)), "they have no names"


def test_columns_beside_a_text_column(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", city=["Oslo", "Rome"] * 20)
    assert "passing over f0 … f5" in notes(path, text_column="city")


@pytest.mark.parametrize("first", [0, 1])
def test_a_counter_of_rows(tmp_path: Path, first: int) -> None:
    numbers = [first + (7 * i) % 40 for i in range(40)]  # in another order
    path = table(tmp_path / "t.csv", id=numbers, often=[i // 2 for i in range(40)])
    said = (
        f"column 'id' counts the rows ({first} … {first + 39}); "
        "leave it out unless it means more: --drop-columns id"
    )
    assert [note for note in notes(path) if "count" in note] == [said]


def test_values_far_beyond_the_rest(tmp_path: Path) -> None:
    income = [*range(100, 138), 1e6, -1]
    path = table(tmp_path / "t.csv", income=income, age=[*(20 + i % 9 for i in range(39)), 99999])
    assert (
        "some values of 'income', 'age' lie far beyond the rest (1e+06 in 'income'); they are "
        "drawn in by asinh; does one stand for a missing value?"
    ) in notes(path)
    assert not any("beyond" in note for note in notes(table(tmp_path / "u.csv")))


def test_an_index_that_pandas_saved(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", **{"Unnamed: 0": list(range(40))})
    data = mlnt.open_dataset(path)
    assert data.encoder.columns == tuple(f"f{i}" for i in range(6))
    assert data.notes == ()


def test_the_label_once_more(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", code=[3, 1] * 20, half=[0, 0, 1, 0] * 10)
    told = [note for note in notes(path) if "tells" in note]
    assert told == ["column 'code' alone tells the label of every row: is it the label once more?"]
    other = mlnt.open_dataset(path, labels=["x", "x", "y", "y"] * 10)
    assert not any("tells" in note for note in other.notes)
    one_each = mlnt.open_dataset((NUMBERS, [f"v{value}" for value in NUMBERS[:, 0]]))
    assert one_each.notes == (), "of classes of one sample each every column tells the label"


def test_classes_that_look_alike_or_missing() -> None:
    names = ["Ham Radio", "ham  radio", "HAM RADIO", "fish", "Fish", "NaN", "n/a", "?", "nana"]
    lines = list(describe_data(mlnt.open_dataset((NUMBERS[:36], names * 4))))
    assert (
        "  note: 'Fish' and 'fish', 'HAM RADIO' and 'Ham Radio' and 'ham  radio' differ in case or "
        "white space only: one class?"
    ) in lines
    assert "  note: a class is called '?', 'NaN', 'n/a': are these samples without label?" in lines


def test_one_number_written_in_two_ways(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv", {"a": NUMBERS[:39, 0].tolist(), "label": ["1", "1.0", "2"] * 13}
    )
    assert "'1' and '1.0' are the same number: one class?" in notes(path)
    path = write(tmp_path / "t.csv", {"a": NUMBERS[:39, 0].tolist(), "label": ["1", "2", "x"] * 13})
    assert not any("number" in note for note in notes(path)[3:])


class TestMeasurements:
    def table(self, folder: Path, labels: list) -> Path:
        rows = np.random.default_rng(0).normal(size=len(labels)).tolist()
        return write(folder / "t.csv", {"a": rows, "label": labels})

    @pytest.mark.parametrize(
        "labels", [["1.87", "2", ".5"], [f"{i / 7:.4f}" for i in range(1, 41)]]
    )
    def test_in_a_table(self, tmp_path: Path, labels: list[str]) -> None:
        said = rf"look like measurements \({labels[0]} …, {len(labels)} values for {len(labels)} "
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(self.table(tmp_path, labels))
        with pytest.raises(mlnt.InputError, match="look like measurements"):
            mlnt.open_dataset(np.ones((len(labels), 1)), labels=labels)

    def test_a_few_with_many_samples_each_are_classes(self, tmp_path: Path) -> None:
        path = self.table(tmp_path, ["0.5", "1.0", "1.5", "2.0"] * 10)
        assert mlnt.open_dataset(path).classes == ("0.5", "1.0", "1.5", "2.0")
        assert "classes are numbers with fractions (0.5, 1.5): or measurements?" in notes(path)

    @pytest.mark.parametrize("labels", [["1.87", "2.31", "tall"], ["1.0", "2.0", "3"]])
    def test_names_and_whole_numbers(self, tmp_path: Path, labels: list[str]) -> None:
        assert mlnt.open_dataset(self.table(tmp_path, labels)).classes == tuple(labels)


def test_the_rarest_classes_are_named_first() -> None:
    labels = [f"c{n}" for n in range(9) for _ in range(9 - n)] + ["many"] * 30
    rows = np.random.default_rng(0).normal(size=(len(labels), 2))
    lines = list(describe_data(mlnt.open_dataset((rows, labels))))
    rarest = "c8 (1), c7 (2), c6 (3), c5 (4), c4 (5) and 4 more"
    assert f"  note: very few samples of {rarest}" in lines


class TestOtherScales:
    IMAGES = np.random.default_rng(0).integers(0, 256, (40, 3, 4, 4), dtype=np.uint8)

    def test_of_a_test(self) -> None:
        labels = [0, 1] * 20
        fraction = self.IMAGES / 255
        said = "test images have values from 0 to 1, those trained on 12"
        data = mlnt.open_dataset((self.IMAGES, labels), test=(fraction, labels))
        assert [note.startswith(said) for note in data.notes] == [True]
        data = mlnt.open_dataset((fraction, labels), validation=(self.IMAGES, labels))
        (note,) = data.notes
        assert note.startswith("validation images have values from 0 to 255, those trained on 0.")
        dim = self.IMAGES // 4
        for others in (self.IMAGES, dim, np.full_like(dim, 7)):
            assert mlnt.open_dataset((self.IMAGES, labels), test=(others, labels)).notes == ()

    def test_of_a_prediction(self, tmp_path: Path) -> None:
        options = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8, "model": "small_conv"}
        mlnt.train((self.IMAGES, [0, 1] * 20), out=tmp_path / "run", **options)
        assert mlnt.predict(tmp_path / "run", self.IMAGES).notes == ()
        (note,) = mlnt.predict(tmp_path / "run", self.IMAGES / 255).notes
        assert note.startswith("these images have values from 0 to 1")


class TestColumnsOfWords:
    def refused(self, path: Path, **options: str) -> str:
        with pytest.raises(mlnt.InputError) as refused:
            mlnt.open_dataset(path, **options)
        return str(refused.value).removeprefix(f"{path}")

    def test_categories(self, tmp_path: Path) -> None:
        path = table(tmp_path / "t.csv", city=CITIES, size=[1.5, 2.5, "?", 4.5] * 10)
        found = notes(path)
        assert "categories, a column of 0 and 1 for each: 'city'" in found
        assert (
            "cells are missing in 'size': filled with the median; a column of 0 and 1 says where"
        ) in found

    def test_too_many_for_categories(self, tmp_path: Path) -> None:
        said = self.refused(table(tmp_path / "t.csv", name=[f"n{i}" for i in range(40)]))
        assert said == (
            ": column 'name' is not numeric (row 1: 'n0'); "
            "make columns of 0 and 1 of categories, or leave them out: --drop-columns name"
        )

    def test_some_cells_among_numbers(self, tmp_path: Path) -> None:
        said = self.refused(table(tmp_path / "t.csv", size=[1.5, 2.5, "w", 4.5] * 10, city=CITIES))
        assert said == (
            ": column 'size' is not numeric (row 3: 'w'); fill the 10 cells that are no numbers, "
            "or remove their rows"
        )

    def test_texts_may_be_empty_or_numbers(self, tmp_path: Path) -> None:
        texts = ["", "", "12", "some words"] * 10
        data = mlnt.open_dataset(write(tmp_path / "t.csv", {"text": texts, "label": CITIES}))
        assert data.train.texts == texts

    def test_sentences(self, tmp_path: Path) -> None:
        said = self.refused(table(tmp_path / "t.csv", title=TEXTS))
        assert said.endswith("; name the text column with --text-column title")

    def test_both(self, tmp_path: Path) -> None:
        path = table(tmp_path / "t.csv", **{"a title": TEXTS, "city": CITIES})
        assert self.refused(path) == (
            ": column 'a title' is not numeric (row 1: 'the 0 quick brown foxes'); name the text "
            "column with --text-column 'a title'"
        )

    def test_no_label(self, tmp_path: Path) -> None:
        columns = {"f0": NUMBERS[:, 0].tolist(), "species": CITIES}
        said = self.refused(write(tmp_path / "t.csv", columns))
        assert said.endswith("; name the label column with --label-column species")
        columns = {"title": TEXTS, "species": CITIES}
        said = self.refused(write(tmp_path / "t.csv", columns))
        assert said.endswith(
            "; name the label column with --label-column species and the text column with "
            "--text-column title"
        )

    @pytest.mark.parametrize("columns", [1, 3])
    def test_decimal_commas(self, tmp_path: Path, columns: int) -> None:
        header = ";".join([*(f"f{i}" for i in range(columns)), "label"])
        cells = ["-1,5;" * columns + "x", "2;" * columns + "y", "3,1e-05;" * columns + "x"]
        (tmp_path / "t.csv").write_text("\n".join([header, *cells]))
        said = self.refused(tmp_path / "t.csv")
        assert said == ": column 'f0' holds '-1,5' (row 1); decimal commas? write -1.5"


def test_what_torch_calls_a_dataset() -> None:
    inputs, labels = torch.randn(12, 3), torch.arange(12) % 2
    whole = torch.utils.data.TensorDataset(inputs, labels)
    assert torch.equal(mlnt.open_dataset(whole).train.labels, labels)
    for source in (torch.utils.data.DataLoader(whole), torch.utils.data.Subset(whole, [0, 1])):
        with pytest.raises(mlnt.InputError, match=r"one after another; give \(X, y\)"):
            mlnt.open_dataset(source)
