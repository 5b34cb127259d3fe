"""Columns of words and missing cells: what numbers they become, wherever the table lies."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlnt
from mlnt.data.columns import Column, columns_from_json, fit_columns, names_of, numbers_of, parsed
from mlnt.data.encoding import TableEncoder, encoder_from_json, encoder_to_json
from mlnt.export import export_model

QUICK: dict[str, Any] = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8}
CELLS = {
    "age": ["61", "", "30", "?"] * 10,
    "married": ["yes", "no", "NA", "yes"] * 10,
    "city": ["Oslo", "Rome", "Oslo", " "] * 10,
    "n": [str(i % 7) for i in range(40)],
}
LABELS = ["x", "y"] * 20
NAMES = (
    "age", "age is missing", "married", "married is missing",
    "city is missing", "city=Oslo", "city=Rome", "n",
)  # fmt: skip


def write(path: Path, cells: dict[str, list[str]]) -> Path:
    lines = [",".join(cells), *(",".join(row) for row in zip(*cells.values(), strict=True))]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1", "2.5", "-1e3"], [1, 2.5, -1000]),
        (["1", " ", "NaN", "null", "?", "N/A"], [1] + [np.nan] * 5),
        (["True", "false", " TRUE", ""], [1, 0, 1, np.nan]),
        (["yes", "No"], [1, 0]),
        (["yes", "maybe"], None),
        (["yes", "1"], None),
        (["", ""], [np.nan, np.nan]),
    ],
)
def test_what_is_a_number(cells: list[str], numbers: list[float] | None) -> None:
    found = parsed(cells)
    assert (None if found is None else found.tolist()) == pytest.approx(numbers, nan_ok=True)


def test_by_hand() -> None:
    columns = fit_columns(tuple(CELLS), list(CELLS.values()), "t")
    assert columns[0] == Column("age", 45.5, True)
    assert columns[2] == Column("city", categories=("", "Oslo", "Rome"))
    assert names_of(columns) == NAMES
    new = [["7", "nan"], ["no", "?"], ["Rome", "Paris"], ["", "1"]]
    assert numbers_of(columns, new, "t").tolist() == [
        [7, 0, 0, 0, 0, 0, 1, 3],
        [45.5, 1, 1, 1, 0, 0, 0, 1],
    ]


def test_too_many_words_for_categories() -> None:
    for words in ([f"w{i}" for i in range(51)] * 9, [f"w{i}" for i in range(20)]):
        with pytest.raises(mlnt.InputError, match=r"too many for categories; name it"):
            fit_columns(["a"], [words], "t")


def test_columns_of_numbers_alone_are_what_they_were(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv", {"n": CELLS["n"], "ok": ["True", "False"] * 20, "label": LABELS}
    )
    encoder = mlnt.open_dataset(path).encoder
    assert isinstance(encoder, TableEncoder)
    assert (encoder.columns, encoder.made_of) == (("n", "ok"), ())


class TestOfATable:
    def test_train_and_predict(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        mlnt.train(write(tmp_path / "t.csv", {**CELLS, "label": LABELS}), out=run, **QUICK)
        expected = mlnt.predict(run, write(tmp_path / "u.csv", {**CELLS, "label": LABELS}))
        assert expected.accuracy is not None
        others = {"beside": ["w"] * 40, **dict(reversed(CELLS.items()))}
        found = mlnt.predict(run, write(tmp_path / "v.csv", others))
        assert torch.equal(found.probabilities, expected.probabilities)
        unseen = CELLS | {"city": ["Paris"] * 40, "n": [""] * 40}
        assert len(mlnt.predict(run, write(tmp_path / "w.csv", unseen)).predicted) == 40
        wrong = CELLS | {"n": ["many"] * 40}
        said = r"'n' is not numeric \(row 1: 'many'\), but that of the training data is"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.predict(run, write(tmp_path / "z.csv", wrong))
        with pytest.raises(mlnt.InputError, match="'age', 'married', 'city' are miss"):
            mlnt.predict(run, write(tmp_path / "q.csv", {"n": CELLS["n"]}))

    def test_test_data(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", {**CELLS, "label": LABELS})
        data = mlnt.open_dataset(path, test=path)
        assert data.test is not None
        assert torch.equal(data.train.inputs, data.test.inputs)

    def test_export(self, tmp_path: Path) -> None:
        mlnt.train(
            write(tmp_path / "t.csv", {**CELLS, "label": LABELS}), out=tmp_path / "run", **QUICK
        )
        path = export_model(tmp_path / "run", "torch-export")
        extra = {"metadata.json": ""}
        model = torch.export.load(path, extra_files=extra).module()
        told = json.loads(extra["metadata.json"])
        assert tuple(json.loads(told["columns"])) == NAMES
        columns = columns_from_json(json.loads(told["made_of"]))
        given = model(torch.from_numpy(numbers_of(columns, list(CELLS.values()), "t")))
        wanted = mlnt.predict(tmp_path / "run", write(tmp_path / "u.csv", CELLS)).probabilities
        torch.testing.assert_close(given, wanted, rtol=0, atol=1e-4)

    def test_infinite_is_no_number(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", CELLS | {"n": ["inf"] * 40, "label": LABELS})
        with pytest.raises(mlnt.InputError, match="row 1 has 'inf' in column 'n'"):
            mlnt.open_dataset(path)


class TestOfADataFrame:
    def frame(self) -> Any:
        pandas = pytest.importorskip("pandas", reason="mlnt takes data frames without needing it")
        return pandas.DataFrame(
            {
                "age": [61.0, np.nan, 30.0, np.nan] * 10,
                "married": pandas.array([True, False, None, True] * 10, dtype="boolean"),
                "city": pandas.Categorical(["Oslo", "Rome", "Oslo", None] * 10),
                "n": [i % 7 for i in range(40)],
            }
        )

    def test_as_of_a_file(self, tmp_path: Path) -> None:
        frame = self.frame()
        of_file = mlnt.open_dataset(write(tmp_path / "t.csv", {**CELLS, "label": LABELS}))
        found = mlnt.open_dataset(frame.assign(label=LABELS))
        assert found.encoder == of_file.encoder
        assert torch.equal(found.train.inputs, of_file.train.inputs)
        tuples = (frame, LABELS), (frame[["n", "city", "married", "age"]], LABELS)
        parted = mlnt.open_dataset(tuples[0], test=tuples[1])
        assert parted.test is not None
        assert torch.equal(parted.test.inputs, of_file.train.inputs)
        as_objects = mlnt.open_dataset(frame.astype(object).assign(label=LABELS))
        assert as_objects.encoder == of_file.encoder

    def test_train_and_predict(self, tmp_path: Path) -> None:
        frame = self.frame()
        training = mlnt.train(frame.assign(label=LABELS), out=tmp_path / "run", **QUICK)
        expected = training.predict_probabilities(frame)
        found = mlnt.predict(tmp_path / "run", frame[["n", "city", "married", "age"]])
        torch.testing.assert_close(found.probabilities, expected)

    def test_the_estimator(self) -> None:
        frame = self.frame()
        found = mlnt.MLNTClassifier(epochs=1, iterations=1, sets=1, random_state=0)
        found.fit(frame, LABELS)
        assert (found.n_features_in_, list(found.feature_names_in_)) == (4, list(frame.columns))
        assert found.predict_proba(frame).shape == (40, 2)
        assert len(found.predict(frame[:3].assign(city="Paris"))) == 3
        with pytest.raises(ValueError, match="feature names"):
            found.predict(frame[["n", "city", "married", "age"]])


class TestSaved:
    def encoder(self) -> TableEncoder:
        columns = fit_columns(tuple(CELLS), list(CELLS.values()), "t")
        return TableEncoder.fit(
            numbers_of(columns, list(CELLS.values()), "t"), names_of(columns), columns
        )

    def test_and_read_back(self) -> None:
        text = json.dumps(encoder_to_json(self.encoder()))
        assert encoder_from_json(json.loads(text)) == self.encoder()

    @pytest.mark.parametrize(
        "changes",
        [
            {"name": 3}, {"name": "other"}, {"fill": "1"}, {"fill": float("nan")}, {"marks": 1},
            {"categories": [1]}, {"categories": ["a"]}, {"categories": 3}, {"more": 1},
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused(self, changes: dict[str, Any]) -> None:
        values = encoder_to_json(self.encoder())
        values["made_of"][0] |= changes
        with pytest.raises((ValueError, TypeError)):
            encoder_from_json(values)
