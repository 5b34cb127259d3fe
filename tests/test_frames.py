"""Data frames of pandas: labels and texts in columns of theirs."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlnt

pandas = pytest.importorskip(
    "pandas", reason="mlnt takes data frames but does not need pandas; the extra dev has it"
)
LABELS = ["x", "y"] * 20
NUMBERS = pandas.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a", "b"])
QUICK = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8}


@pytest.mark.parametrize(
    ("name", "named"),
    [("label", None), ("label", "label"), ("k", "k"), ("Label", None), ("LABELS", None)],
)
def test_labels_in_a_column(name: str, named: str | None) -> None:
    expected = mlnt.open_dataset((NUMBERS, LABELS))
    data = mlnt.open_dataset(NUMBERS.assign(**{name: LABELS}), label_column=named)
    assert data.encoder == expected.encoder
    assert data.classes == ("x", "y")
    assert torch.equal(data.train.labels, expected.train.labels)


def test_where_they_are_not_found() -> None:
    frame = NUMBERS.assign(kind=[0, 1] * 20)
    with pytest.raises(mlnt.InputError, match=r"name .* label_column, or give \(df\.drop\(col"):
        mlnt.open_dataset(frame)
    with pytest.raises(mlnt.InputError, match=r"data frame has no column 'kin'; did you mean 'ki"):
        mlnt.open_dataset(frame, label_column="kin")
    for name, values in (("Target", LABELS), ("y", [0, 1] * 20), ("class", LABELS)):
        said = (
            rf"are they in '{name}'\? Then label_column='{name}'; else .* \(columns: a, b, {name}\)"
        )
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(NUMBERS.assign(**{name: values}))
    points = NUMBERS.rename(columns={"a": "x", "b": "y"})
    assert mlnt.open_dataset(points, labels=LABELS).encoder.columns == ("x", "y")


def test_rows_without_a_label_are_left_out() -> None:
    frame = NUMBERS.assign(label=[None, *LABELS[1:]])
    data = mlnt.open_dataset(frame)
    assert len(data.train) == 39
    assert "1 row without a label left out" in data.notes


class TestSomeLabelsMissing:
    """As in a CSV of the same rows, in which a missing label is an empty cell."""

    @pytest.mark.parametrize(
        "lacking",
        [
            pandas.Series([np.nan, *[1.0, 0.0] * 5, np.nan]),
            pandas.Series([None, *["1", "0"] * 5, " "]),
            pandas.Series([None, *[1, 0] * 5, None], dtype="Int64"),
            pandas.Series([None, *[1, 0] * 5, None], dtype="object"),
            pandas.Series([None, *[1, 0] * 5, None], dtype="category"),
        ],
        ids=["float", "str", "Int64", "object", "category"],
    )
    def test_others_are_compared_with(self, lacking: Any, tmp_path: Path) -> None:
        run, whole = tmp_path / "run", NUMBERS.assign(label=[0, 1] * 20)
        mlnt.train(whole, out=run, **QUICK)
        rows = NUMBERS[: len(lacking)]
        frame = rows.assign(label=lacking)
        rows.assign(label=["", *[1, 0] * 5, ""]).to_csv(tmp_path / "new.csv", index=False)
        found, expected = (mlnt.predict(run, new) for new in (frame, tmp_path / "new.csv"))
        assert found.accuracy == expected.accuracy
        assert (found.accuracy is not None, found.unknown) == (True, ())
        assert found.notes == expected.notes == ("10 of 12 have a label to compare with",)

    def test_names_that_are_no_classes(self, tmp_path: Path) -> None:
        mlnt.train(NUMBERS.assign(label=LABELS), out=tmp_path / "run", **QUICK)
        found = mlnt.predict(tmp_path / "run", NUMBERS[:3].assign(label=["x", None, "z"]))
        assert (found.accuracy, found.unknown) == (None, ("z",))

    @pytest.mark.parametrize("what", ["validation", "test"])
    def test_they_must_all_be_there_to_validate_or_test(self, what: str) -> None:
        train = NUMBERS.assign(label=[0, 1] * 20)
        with pytest.raises(mlnt.InputError, match=f"^{what} data: row 2 has no label$"):
            mlnt.open_dataset(train, **{what: NUMBERS[:3].assign(label=[1, None, 0])})
        with pytest.raises(mlnt.InputError, match=f"{what} data has no labels"):
            mlnt.open_dataset(train, **{what: NUMBERS[:3].assign(label=None)})


def test_texts_in_a_column() -> None:
    frame = pandas.DataFrame({"n": range(40), "title": ["good day", "bad day"] * 20})
    data = mlnt.open_dataset(frame.assign(label=LABELS), text_column="title")
    assert data.train.texts == list(frame["title"])
    with pytest.raises(mlnt.InputError, match="data frame has no column 'titel'"):
        mlnt.open_dataset(frame.assign(label=LABELS), text_column="titel")
    alone = mlnt.open_dataset(frame[["title"]].assign(label=LABELS))
    assert alone.text_column == "title"


def test_train_and_predict(tmp_path: Path) -> None:
    frame = NUMBERS.assign(label=LABELS)
    training = mlnt.train(frame, out=tmp_path / "run", **QUICK)
    expected = training.predict_probabilities(NUMBERS.to_numpy())
    beside = frame[["label", "b", "a"]].assign(city="Oslo")
    found = mlnt.predict(tmp_path / "run", beside)
    torch.testing.assert_close(found.probabilities, expected)
    assert found.accuracy is not None
    assert mlnt.predict(tmp_path / "run", beside.assign(label=None)).accuracy is None
    with pytest.raises(mlnt.InputError, match="'b' is missing"):
        mlnt.predict(tmp_path / "run", beside[["a", "city"]])


@pytest.mark.parametrize("kind", ["bool", "boolean", "Int64", "Float64", "uint8"])
def test_numbers_of_other_kinds_beside_numbers(kind: str) -> None:
    """Together pandas makes objects of most of them."""
    frame = NUMBERS.assign(b=(NUMBERS["b"] > 0).astype(kind))
    plain = frame.astype("float64")
    expected = mlnt.open_dataset(plain.assign(label=LABELS)).train.inputs
    dataset = mlnt.open_dataset(frame.assign(label=LABELS), test=(frame, LABELS))
    assert dataset.test is not None
    for split in (dataset.train, dataset.test):
        assert torch.equal(split.inputs, expected)


@pytest.mark.parametrize("shape", [(6, 2), (6, 1, 4, 4), (6, 4, 4, 3)])
@pytest.mark.parametrize("kind", [np.float64, np.uint8])
def test_memory_that_must_not_be_written(shape: tuple[int, ...], kind: type) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    array.flags.writeable = False
    torch.set_warn_always(True)  # not once per process, which may have been before
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mlnt.open_dataset((array, [0, 1] * 3))
    finally:
        torch.set_warn_always(False)
    assert not array.flags.writeable


def test_columns_without_names_go_by_their_order(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    labels = (rows[:, 0] > 0).astype(int)
    run = tmp_path / "run"
    named = pandas.DataFrame(rows, columns=["a", "b", "c"])
    mlnt.train((named, labels), out=run, epochs=1, iterations=1)
    expected = mlnt.predict(run, rows).probabilities
    assert torch.equal(mlnt.predict(run, pandas.DataFrame(rows)).probabilities, expected)
    # What is no class of the run is not compared with, as in a table on disk.
    found = mlnt.predict(run, named.assign(label=labels + 0.5))
    assert torch.equal(found.probabilities, expected)
    assert set(found.unknown) == {"0.5", "1.5"}


def test_no_columns_at_all() -> None:
    with pytest.raises(mlnt.InputError, match=r"no samples|no columns"):
        mlnt.open_dataset(pandas.DataFrame(), labels=[])


class TestWhatTrainingGaveBack:
    """Asked about a data frame, as `mlnt.predict` is."""

    def test_columns_go_by_their_names(self) -> None:
        frame = NUMBERS.assign(label=LABELS)
        training = mlnt.train(frame, **QUICK)
        expected = training.predict_probabilities(NUMBERS.to_numpy())
        for given in (NUMBERS[["b", "a"]], frame, frame.assign(city="Oslo")):
            assert torch.equal(training.predict_probabilities(given), expected)
        with pytest.raises(mlnt.InputError, match="'b' is missing"):
            training.predict_probabilities(frame[["a", "label"]])

    def test_categories_and_missing_cells(self) -> None:
        frame = NUMBERS.assign(city=["Oslo", "Rome", None, "Oslo"] * 10, label=LABELS)
        training = mlnt.train(frame, **QUICK)
        expected = training.predict_probabilities(frame[["a", "b", "city"]])
        found = training.predict_probabilities(frame[["label", "city", "b", "a"]])
        assert torch.equal(found, expected)

    def test_texts(self) -> None:
        frame = pandas.DataFrame({"n": range(40), "title": ["good day", "bad day"] * 20})
        training = mlnt.train(frame.assign(label=LABELS), text_column="title", **QUICK)
        expected = training.predict_probabilities(list(frame["title"]))
        for given in (frame, frame.assign(label=LABELS), frame[["title"]]):
            assert torch.equal(training.predict_probabilities(given), expected)


class TestCellsMissingInNewData:
    """Of columns that had none missing in training: filled with their middle, and said."""

    SAID = (
        "3 missing cells in 2 of 40 rows, in 'a' (1), 'b' (2): filled with the middle of the "
        "column in the training data, where none was missing"
    )

    @pytest.fixture
    def gaps(self) -> Any:
        frame = NUMBERS.copy()
        frame.loc[3, ["a", "b"]] = np.nan
        frame.loc[5, "b"] = np.nan
        return frame

    @pytest.mark.parametrize("beside", [{}, {"city": ["Oslo", "Rome"] * 20}])
    def test_predict(self, tmp_path: Path, gaps: Any, beside: dict[str, Any]) -> None:
        training = mlnt.train(NUMBERS.assign(**beside, label=LABELS), out=tmp_path / "run", **QUICK)
        middle = NUMBERS.median() if beside else NUMBERS.mean()
        expected = training.predict_probabilities(gaps.fillna(middle).assign(**beside))
        gaps = gaps.assign(**beside)
        gaps.assign(label=LABELS).to_csv(tmp_path / "gaps.csv", index=False)
        for given in (gaps, gaps.astype(object), tmp_path / "gaps.csv"):
            found = mlnt.predict(tmp_path / "run", given)
            assert found.notes == (self.SAID,)
            torch.testing.assert_close(found.probabilities, expected)
        with pytest.warns(UserWarning, match="missing") as warned:
            probabilities = training.predict_probabilities(gaps)
        assert [str(warning.message) for warning in warned] == [self.SAID]
        torch.testing.assert_close(probabilities, expected)

    def test_one(self, tmp_path: Path, gaps: Any) -> None:
        mlnt.train(NUMBERS.assign(label=LABELS), out=tmp_path / "run", **QUICK)
        (note,) = mlnt.predict(tmp_path / "run", gaps[5:6]).notes
        assert note.startswith("1 missing cell in 1 of 1 row, in 'b' (1): filled")
        with pytest.raises(mlnt.InputError, match="features must be finite"):
            mlnt.predict(tmp_path / "run", gaps.to_numpy())

    @pytest.mark.parametrize("what", ["validation", "test"])
    @pytest.mark.parametrize("beside", [{}, {"city": ["Oslo", "Rome"] * 20}])
    def test_further_data(
        self, what: str, gaps: Any, beside: dict[str, Any], tmp_path: Path
    ) -> None:
        """As they are filled to predict."""
        train, new = (frame.assign(**beside, label=LABELS) for frame in (NUMBERS, gaps))
        new.to_csv(tmp_path / "gaps.csv", index=False)
        middle = NUMBERS.median() if beside else NUMBERS.mean()
        full = mlnt.open_dataset(train, **{what: new.fillna(middle)})
        for given in (new, tmp_path / "gaps.csv", (new.drop(columns="label"), LABELS)):
            data = mlnt.open_dataset(train, **{what: given})
            assert set(data.notes) == {*full.notes, f"{what} data: {self.SAID}"}
            torch.testing.assert_close(getattr(data, what).inputs, getattr(full, what).inputs)
        with pytest.raises(mlnt.InputError, match="must be finite"):
            mlnt.open_dataset((NUMBERS.to_numpy(), LABELS), **{what: (gaps.to_numpy(), LABELS)})

    def test_training_data_must_have_all_or_be_marked(self, gaps: Any) -> None:
        assert "a is missing" in mlnt.open_dataset(gaps, labels=LABELS).encoder.columns

    @pytest.mark.parametrize(
        ("lacking", "said"),
        [
            (
                {"city": [1, 2]},
                "2 missing cells in 2 of 40 rows, in 'city' (2): taken for none of ",
            ),
            (
                {"city": [1], "a": [1]},
                "2 missing cells in 1 of 40 rows, in 'a' (1), 'city' (1): filled with the middle "
                "of the column, or taken for none of the categories, in the training data, where ",
            ),
        ],
    )
    def test_categories(self, lacking: dict[str, list[int]], said: str, tmp_path: Path) -> None:
        train = NUMBERS.assign(city=["Oslo", "Rome"] * 20, label=LABELS)
        mlnt.train(train, out=tmp_path / "run", **QUICK)
        new = train.copy()
        for column, rows in lacking.items():
            new.loc[rows, column] = None
        (note,) = mlnt.predict(tmp_path / "run", new).notes
        assert note.startswith(said)
        data = mlnt.open_dataset(train, test=new)
        assert any(note.startswith(f"test data: {said}") for note in data.notes)
        assert data.test is not None
        decoded = data.encoder.decode(data.test.inputs)[1, -2:]
        np.testing.assert_allclose(decoded, [0, 0], atol=1e-6)

    @pytest.mark.parametrize("beside", [{}, {"city": ["Oslo", "Rome"] * 20}])
    def test_estimator(self, gaps: Any, beside: dict[str, Any]) -> None:
        settings: dict[str, Any] = {**QUICK, "random_state": 0}
        found = mlnt.MLNTClassifier(**settings).fit(NUMBERS.assign(**beside), LABELS)
        middle = NUMBERS.median() if beside else NUMBERS.mean()
        expected = found.predict_proba(gaps.fillna(middle).assign(**beside))
        with pytest.warns(UserWarning, match="missing") as warned:
            probabilities = found.predict_proba(gaps.assign(**beside))
        assert [str(warning.message) for warning in warned] == [self.SAID]
        np.testing.assert_allclose(probabilities, expected, rtol=1e-5)
        array = gaps.to_numpy()
        with pytest.raises(mlnt.InputError, match=r"contains NaN; fill it, or give a data frame"):
            mlnt.MLNTClassifier(**settings).fit(array, LABELS)
