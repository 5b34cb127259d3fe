"""How tables are read: separators, columns that are known or missing, cells that are no numbers."""

from pathlib import Path

import numpy as np
import pytest

import mlnt
from mlnt.terminal import describe_data


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("size (w,h);b;label", ("size (w,h)", "b")),
        ('"w,h,d";b;label', ("w,h,d", "b")),
        ('"w;h;d",b,label', ("w;h;d", "b")),
        ("w;h,b,label", ("w;h", "b")),
        ("a,b\tb\tlabel", ("a,b", "b")),
    ],
)
def test_a_separator_may_stand_in_a_name(
    tmp_path: Path, header: str, columns: tuple[str, ...]
) -> None:
    rows = [header[-6].join(row) for row in ("12x", "34y", "56x")]
    path = write(tmp_path / "t.csv", "\n".join([header, *rows]))
    assert mlnt.open_dataset(path).encoder.columns == columns


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,4\n", r"^t has no labels; name .* --label-column NAME \(columns: a, b\)$"),
        ("a,b,c,d,e,f,g\n" + "1,2,3,4,5,6,7\n" * 2, r"\(columns: a, b, c, d, e and 2 more\)"),
        ("a|b|label\n1|2|x\n3|4|y\n", r"only column is 'a\|b\|label'; are columns separated by"),
        ("a\n1\n2\n", r"only column is 'a'; are columns separated by a comma, a semicolon or"),
    ],
)
def test_where_labels_may_be(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.open_dataset(write(tmp_path / "t.csv", content))


class TestWithoutALineOfNames:
    CELLS = "11.71,14.2,386,benign\n" + "12.5,13,400,malignant\n11,15.5,390,benign\n" * 3

    def test_the_first_row_is_not_taken_for_names(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", self.CELLS)
        said = (
            r"t.csv: its first line \(11.71, 14.2, 386, benign\) looks like a row, .*a line of na"
        )
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(path)
        # Asked for by its name it is taken; but it is said what that means.
        (note,) = mlnt.open_dataset(path, label_column="benign").notes
        assert note.startswith("its first line (11.71, 14.2, 386, benign) looks like a row")

    def test_years_beside_a_label_column_are_names(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "t.csv", self.CELLS.replace("11.71,14.2,386,benign", "2015,18,21,kind")
        )
        assert mlnt.open_dataset(path, label_column="kind").notes == ()

    def test_of_a_table_of_pictures(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "a/1.png,a\nb/1.png,b\na/2.png,a\n")
        with pytest.raises(mlnt.InputError, match=r"first line \(a/1.png, a\) looks like a row"):
            mlnt.open_dataset(path)

    @pytest.mark.parametrize("names", ["0,1,2,label", "1,2,3,label", "400.5,401,401.5,label"])
    def test_numbers_may_be_names(self, names: str, tmp_path: Path) -> None:
        cells = self.CELLS.replace("11.71,14.2,386,benign", names)
        assert mlnt.open_dataset(write(tmp_path / "t.csv", cells)).notes == ()
        unnamed = write(tmp_path / "u.csv", "0,1,2\n" + "3,4,6\n4,4,5\n" * 3)
        assert mlnt.open_dataset(unnamed, labels=[0, 1] * 3).notes == ()


class TestWhereLabelsCameFrom:
    @pytest.mark.parametrize(
        ("header", "rows"),
        [
            ("x,y,z", ["1,2,3", "4,3,2"]),
            ("a,y,kind", ["1,2,u", "3,4,v"] * 2),
        ],
    )
    def test_a_y_that_may_be_a_measurement_is_asked_about(
        self, tmp_path: Path, header: str, rows: list[str]
    ) -> None:
        path = write(tmp_path / "t.csv", "\n".join([header, *rows]))
        with pytest.raises(mlnt.InputError, match=r"are the labels in 'y'.* --label-column NAME"):
            mlnt.open_dataset(path)

    @pytest.mark.parametrize(
        ("header", "rows"),
        [
            ("x,y,z", ["1,no,3", "4,yes,2"]),
            ("a,y", ["1,2", "3,4"]),
            ("text,y", ["one day,2", "another day,4", "night,2"]),
        ],
    )
    def test_it_is_said(self, tmp_path: Path, header: str, rows: list[str]) -> None:
        path = write(tmp_path / "t.csv", "\n".join([header, *rows]))
        lines = describe_data(mlnt.open_dataset(path))
        assert [line for line in lines if line.startswith("  labels (column 'y'): ")]

    def test_not_where_they_are_given_beside_it(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "a,target\n1,2\n3,4\n")
        data = mlnt.open_dataset(path, labels=["2", "4"])
        assert data.labels_from is None

    @pytest.mark.parametrize(
        ("header", "cells", "names", "columns"),
        [
            ("x,y", "1,{}", "012", ("x", "y")),
            ("y,x,z", "{},1,2", "uvw", ("y", "x", "z")),
            ("a,y", "1,{}", "uvw", ("a", "y")),
            ("a,y,kind", "1,{},k", "uvw", ("a", "y", "kind=k")),
            # These are labels: learnt from, they would tell those that were corrected.
            ("a,y", "1,{}", "012", ("a",)),
            ("a,y", "1,{}.0", "012", ("a",)),
            ("x,y,class", "1,2,{}", "012", ("x", "y")),
        ],
    )
    def test_a_y_is_learnt_from_where_labels_are_given_beside_it(
        self, header: str, cells: str, names: str, columns: tuple[str, ...], tmp_path: Path
    ) -> None:
        rows = [cells.format(number % 3) for number in range(9)]
        path = write(tmp_path / "t.csv", "\n".join([header, *rows]))
        labels = write(tmp_path / "labels.txt", "\n".join(names * 3))
        data = mlnt.open_dataset(path, labels=labels)
        assert (data.encoder.columns, data.classes) == (columns, tuple(names))
        said = [note for note in data.notes if note.startswith("column 'y' is learnt from, as")]
        assert len(said) == ("y" in columns and "class" not in header)

    @pytest.mark.parametrize("names", ["0 1", "k l", "l m"])
    def test_words_that_may_be_labels_are_asked_about(self, names: str, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "a,kind\n" + "1,k\n2,l\n" * 4)
        with pytest.raises(mlnt.InputError, match=r"words in 'kind' those .* --label-column kind;"):
            mlnt.open_dataset(path, labels=names.split() * 4)
        assert mlnt.open_dataset(path, labels=["u", "v"] * 4).classes == ("u", "v")
        data = mlnt.open_dataset(path, labels=["k", "l"] * 4, label_column="kind")
        assert data.encoder.columns == ("a",)

    def test_words_are_refused_with_it(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "city,a,target\nOslo,1,2\nRome,3,4\n")
        with pytest.raises(mlnt.InputError, match=r"'Oslo'\) \(labels: column 'target'\); "):
            mlnt.open_dataset(path)


QUICK = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def trained_on_numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    rows = [f"{i % 7},{i % 5},{'xy'[i % 2]}" for i in range(40)]
    mlnt.train(
        write(folder / "t.csv", "\n".join(["a,b,kind", *rows])),
        label_column="kind",
        out=folder / "run",
        **QUICK,
    )
    return folder / "run"


@pytest.fixture(scope="module")
def trained_on_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rows = [f"{'good' if i % 2 else 'bad'} day {i % 3},{'+-'[i % 2]}" for i in range(40)]
    path = write(folder / "t.csv", "\n".join(["title,label", *rows]))
    mlnt.train(path, out=folder / "run", **QUICK)
    return folder / "run"


class TestColumnsOfARun:
    @pytest.mark.parametrize("beside", ["", "Oslo", "1.jpg", "12"])
    def test_others_count_for_nothing(
        self, trained_on_numbers: Path, tmp_path: Path, beside: str
    ) -> None:
        content = f"city,b,a,kind\n{beside},1,2,x\n{beside},3,4,y\n"
        new = write(tmp_path / "new.csv", content)
        alone = write(tmp_path / "alone.csv", "a,b\n2,1\n4,3\n")
        found, expected = (mlnt.predict(trained_on_numbers, path) for path in (new, alone))
        assert found.accuracy is not None
        assert found.probabilities.tolist() == expected.probabilities.tolist()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("b,city\n1,Oslo\n", r"not all columns .*: 'a' is missing \(columns: b, city\)"),
            ("text\nOslo\n", r"'a', 'b' are missing \(columns: text\)"),
            ("a,b\n1,2\n3,two\n", r"'b' is not numeric \(row 2: 'two'\), but that of the tr"),
            ("a,b\n1,2\n3,inf\n", "row 2 has 'inf' in column 'b'"),
            ("a,b,b\n1,2,3\n", "two columns of one name"),
            ("a;b\n1;2,5\n", "decimal commas"),
        ],
    )
    def test_what_is_missing_is_named(
        self, trained_on_numbers: Path, tmp_path: Path, content: str, message: str
    ) -> None:
        with pytest.raises(mlnt.InputError, match=message):
            mlnt.predict(trained_on_numbers, write(tmp_path / "new.csv", content))

    def test_test_data_may_have_more_columns(self, tmp_path: Path) -> None:
        train = write(tmp_path / "t.csv", "a,label\n1,x\n2,y\n")
        test = write(tmp_path / "u.csv", "city,a,label\nOslo,1,x\nRome,2,y\n")
        data = mlnt.open_dataset(train, test=test)
        assert data.test is not None
        assert data.test.inputs.tolist() == data.train.inputs.tolist()

    @pytest.mark.parametrize(
        "header", ["title,city,n", "city,title,n", "n,city,title", "n,image,title"]
    )
    def test_texts_go_by_the_name_that_was_found(
        self, trained_on_texts: Path, tmp_path: Path, header: str
    ) -> None:
        cells = {"title": "good day", "city": "Oslo is far", "n": "1", "image": "1.png"}
        row = ",".join(cells[name] for name in header.split(","))
        found = mlnt.predict(trained_on_texts, write(tmp_path / "new.csv", f"{header}\n{row}\n"))
        alone = mlnt.predict(trained_on_texts, (["good day"], None))
        assert found.probabilities.tolist() == alone.probabilities.tolist()

    def test_a_single_column_of_texts_may_have_another_name(
        self, trained_on_texts: Path, tmp_path: Path
    ) -> None:
        path = write(tmp_path / "new.csv", "headline\ngood day\n")
        assert len(mlnt.predict(trained_on_texts, path).predicted) == 1
        path = write(tmp_path / "new.csv", "headline,city\ngood day,Oslo\n")
        with pytest.raises(mlnt.InputError, match="no column 'title'"):
            mlnt.predict(trained_on_texts, path)


class TestLabelsThatAreNotKnown:
    def test_rows_without_are_left_out_of_training(self, tmp_path: Path) -> None:
        data = mlnt.open_dataset(write(tmp_path / "t.csv", "a,label\n1,x\n2,\n3,y\n4, \n"))
        assert data.train.inputs[:, 0].tolist() == [-1, 1]
        said = "2 rows without a label left out"
        assert said in data.notes
        with pytest.raises(mlnt.InputError, match="row 1 has no label"):
            mlnt.open_dataset(write(tmp_path / "t.csv", "a,label\n1,\n3,\n"))

    def test_whole_numbers_with_a_point(self, tmp_path: Path) -> None:
        with_point, without = "a,label\n1,0.0\n2,1.0\n3,\n", "a,label\n1,0\n2,1\n"
        first, second = write(tmp_path / "t.csv", with_point), write(tmp_path / "u.csv", without)
        for train, test in ((first, second), (second, write(tmp_path / "v.csv", with_point[:-4]))):
            data = mlnt.open_dataset(train, test=test)
            assert data.test is not None
            assert (data.classes, data.test.labels.tolist()) == (("0", "1"), [0, 1])
        assert mlnt.open_dataset(second, labels=["1.0", "0.0"]).train.labels.tolist() == [1, 0]
        rated = write(tmp_path / "w.csv", "a,label\n" + "1,0.5\n2,1.0\n" * 8)
        data = mlnt.open_dataset(rated, test=write(tmp_path / "x.csv", "a,label\n1,1.0\n"))
        assert data.test is not None
        assert (data.classes, data.test.labels.tolist()) == (("0.5", "1.0"), [1])

    def test_an_empty_column_is_not_compared_with(
        self, trained_on_numbers: Path, tmp_path: Path
    ) -> None:
        new = write(tmp_path / "new.csv", "a,b,kind\n1,2,\n3,4, \n")
        found = mlnt.predict(trained_on_numbers, new)
        assert (found.accuracy, len(found.predicted)) == (None, 2)

    def test_what_is_predicted_is_compared_where_it_has_a_label(
        self, trained_on_numbers: Path, tmp_path: Path
    ) -> None:
        whole = mlnt.predict(trained_on_numbers, write(tmp_path / "u.csv", "a,b\n1,2\n3,4\n5,1\n"))
        other = {"x": "y", "y": "x"}[whole.predicted[2]]
        partly = f"a,b,kind\n1,2,{whole.predicted[0]}\n3,4,\n5,1,{other}\n"
        found = mlnt.predict(trained_on_numbers, write(tmp_path / "v.csv", partly))
        assert (found.accuracy, found.predicted) == (50.0, whole.predicted)
        assert found.notes == ("2 of 3 have a label to compare with",)
        unknown = write(tmp_path / "w.csv", "a,b,kind\n1,2,z\n3,4,\n5,1,x\n")
        found = mlnt.predict(trained_on_numbers, unknown)
        assert (found.accuracy, found.unknown) == (None, ("z",))

    @pytest.mark.parametrize("what", ["validation", "test"])
    def test_they_must_all_be_there_to_validate_or_test(self, tmp_path: Path, what: str) -> None:
        train = write(tmp_path / "t.csv", "a,label\n1,x\n2,y\n")
        partly = write(tmp_path / "u.csv", "a,label\n1,x\n2,\n")
        with pytest.raises(mlnt.InputError, match=f"^{what} data: row 2 has no label$"):
            mlnt.open_dataset(train, **{what: partly})

    def test_whole_numbers_are_named_so_where_some_are_missing(self, tmp_path: Path) -> None:
        rows = "\n".join(f"{n % 9},{n % 2}" for n in range(40))
        mlnt.train(write(tmp_path / "t.csv", f"a,label\n{rows}"), out=tmp_path / "run", **QUICK)
        found = mlnt.predict(tmp_path / "run", write(tmp_path / "u.csv", "a,label\n1,1.0\n2,\n"))
        assert (found.unknown, found.accuracy in (0.0, 100.0)) == ((), True)

    def test_they_are_needed_for_a_test(self, tmp_path: Path) -> None:
        train = write(tmp_path / "t.csv", "a,kind\n1,x\n2,y\n")
        for content in ("a,kind\n1,\n", "a\n1\n"):
            test = write(tmp_path / "u.csv", content)
            with pytest.raises(mlnt.InputError, match=r"test data has no labels; .* column 'kind'"):
                mlnt.open_dataset(train, label_column="kind", test=test)


def test_texts_without_words_are_read_by_character(tmp_path: Path) -> None:
    """As the terminal says; and both it and predict tell of texts that nothing is known of."""
    path = write(tmp_path / "zh.csv", "text,label\n" + "今天晴,好\n今天雨,坏\n" * 20 + "?,好\n" * 9)
    data = mlnt.open_dataset(path)
    lines = list(describe_data(data))
    assert any("read as 8 characters and pairs" in line for line in lines)
    mlnt.train(path, out=tmp_path / "run", epochs=2, iterations=1)
    found = mlnt.predict(tmp_path / "run", write(tmp_path / "new.csv", "text\n天晴\n好\n"))
    said = "1 of 2 texts holds no known character: all such texts get the same answer"
    assert said in found.notes


class TestOneAndSeveral:
    """Messages count in plain English."""

    @pytest.mark.parametrize(
        ("rows", "said"),
        [
            ("1,0,x\n2,0,y\nfour,0,x\n", "fill the cell that is no number, or remove its row$"),
            ("1,0,x\n2,0,y\n3,0,x\na,0,y\nb,0,y\n", "the 2 cells that are no numbers, or remove"),
        ],
    )
    def test_cells_that_are_no_numbers(self, tmp_path: Path, rows: str, said: str) -> None:
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(write(tmp_path / "t.csv", f"a,b,label\n{rows}"))

    @pytest.mark.parametrize(
        ("rows", "said"),
        [
            ("inf,x\n2,y\n", "1 of 2 rows has a cell that is .*: fill it, or remove the row$"),
            ("inf,x\n-inf,y\n1,x\n", "2 of 3 rows have a cell that is .*or remove the rows$"),
        ],
    )
    def test_cells_that_are_not_finite(self, tmp_path: Path, rows: str, said: str) -> None:
        test = write(tmp_path / "u.csv", f"a,label\n{rows}")
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset((np.array([[1.0], [2], [3]]), ["x", "y", "x"]), test=test)
        train = write(tmp_path / "t.csv", "a,label\n1,x\n2,y\n3,x\n")
        with pytest.raises(mlnt.InputError, match="row 1 has 'inf' in column 'a'; fill in a fin"):
            mlnt.open_dataset(train, test=test)

    def test_labels_and_samples(self) -> None:
        said = "^labels: 1 label for 2 training samples; they must be as many$"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(np.eye(2), labels=["x"])
        with pytest.raises(mlnt.InputError, match=r"^1 sample but 2 labels;"):
            mlnt.open_dataset((np.eye(1), ["x", "y"]))
        said = "must be finite, but 1 of 2 samples holds NaN"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(([[1.0], [np.nan]], ["x", "y"]))
