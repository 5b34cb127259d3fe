"""Labels given beside the data: `--labels` and `--true-labels`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mlnt
from mlnt.terminal import describe_data

ROWS = np.random.default_rng(0).normal(size=(30, 2))
ANIMALS = ["wolf", "cat", "dog"] * 10


class TestNumbersForNames:
    def test_which_class_each_was_taken_for(self, tmp_path: Path) -> None:
        (tmp_path / "l.txt").write_text("\n".join(["0", "1", "2"] * 10))
        said = "labels: 0, 1, 2 are taken for cat, dog, wolf, in this order"
        data = mlnt.open_dataset((ROWS, ANIMALS), labels=tmp_path / "l.txt")
        assert data.train.labels.tolist() == [0, 1, 2] * 10
        assert f"  note: {said}" in list(describe_data(data))
        data = mlnt.open_dataset((ROWS, ANIMALS), true_labels=[0, 1, 2] * 10)
        assert data.notes == (f"true_{said}",)

    def test_names_need_no_note(self) -> None:
        assert mlnt.open_dataset((ROWS, ANIMALS), labels=ANIMALS[::-1]).notes == ()
        assert mlnt.open_dataset(ROWS, labels=[3, 4] * 15).notes == ()

    def test_other_numbers_than_the_classes_are_no_places(self) -> None:
        said = r"^labels: label '0' \(at index 0\) is not a class.* \(classes: 10, 20, 30\)$"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset((ROWS, [10, 20, 30] * 10), labels=[0, 1, 2] * 10)


class TestLabelsThatNameTheirSamples:
    """A table of labels whose rows stand in another order than the samples."""

    NAMES = ("cat/1.png", "cat/2.png", "cat/10.png", "dog/3.png", "dog/4.png", "dog/5.png")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in self.NAMES:
            file = tmp_path / "pets" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(file)
        return tmp_path / "pets"

    @pytest.mark.parametrize(
        ("column", "written"),
        [
            ("path", "{folder}/{name}"),
            ("sample", "{name}"),
            ("file", "./{folder}\\{name}"),
            ("picture of a pet", "{root}/{name}"),
            ("filename", "{name.name}"),
            ("id", "{name.stem}"),
        ],
    )
    @pytest.mark.parametrize("what", ["labels", "true_labels"])
    def test_they_are_found_by_it(self, folder: Path, column: str, written: str, what: str) -> None:
        lines = [f"{column},n,label"]
        for name in self.NAMES[::-1]:
            cell = written.format(folder=folder.name, root=folder, name=Path(name))
            lines.append(f"{cell},1,{'dog' if '1' in name else 'cat'}")
        table = folder.parent / "l.csv"
        table.write_text("\n".join(lines))
        data = mlnt.open_dataset(folder, **{what: table})
        found = data.train.labels if what == "labels" else data.train.true_labels
        assert found is not None
        expected = ["dog" if "1" in str(name) else "cat" for name in data.train.texts or ()]
        assert [data.classes[i] for i in found.tolist()] == expected

    def test_more_than_there_are_samples(self, folder: Path) -> None:
        rows = [f"dog/{n}.png,cat" for n in range(3, 9)] + [f"cat/{n}.png,dog" for n in (10, 2, 1)]
        (folder.parent / "l.csv").write_text("\n".join(["path,label", *rows]))
        data = mlnt.open_dataset(folder, labels=folder.parent / "l.csv")
        assert data.train.labels.tolist() == [1, 1, 1, 0, 0, 0]

    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            (("cat/1.png", "cat/2.png"), r"names 5 of the 6 .*; 'cat/10.png' is missing; add it"),
            (NAMES, None),
            (
                tuple(f"x{name}" for name in range(6)),
                r"'path' names none of the 6 .*'cat/1.png' is",
            ),
        ],
    )
    def test_in_part(self, folder: Path, cells: tuple[str, ...], said: str | None) -> None:
        cells = cells if len(cells) == 6 else (*cells, "cat/11.png", *self.NAMES[3:])
        rows = [f"{cell},{label}" for cell, label in zip(cells, ["cat", "dog"] * 3, strict=True)]
        (folder.parent / "l.csv").write_text("\n".join(["path,label", *rows]))
        if said is None:
            mlnt.open_dataset(folder, labels=folder.parent / "l.csv")
            return
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(folder, labels=folder.parent / "l.csv")

    def test_two_labels_for_one(self, folder: Path) -> None:
        rows = [f"{name},cat" for name in (*self.NAMES, self.NAMES[0])]
        (folder.parent / "l.csv").write_text(
            "\n".join(["path,label", *rows[:-1], rows[0][:-3] + "dog"])
        )
        with pytest.raises(mlnt.InputError, match=r"names 'cat/1.png' twice, .*'cat' and 'dog'"):
            mlnt.open_dataset(folder, labels=folder.parent / "l.csv")

    def test_an_index_beside_it_must_say_the_same(self, folder: Path) -> None:
        texts = list(mlnt.open_dataset(folder).train.texts or ())
        rows = [f"{i},{name},{name[:3]}" for i, name in enumerate(texts)][::-1]
        table = folder.parent / "l.csv"
        table.write_text("\n".join(["index,path,label", *rows]))
        assert mlnt.open_dataset(folder, labels=table).train.labels.tolist() == [0, 0, 0, 1, 1, 1]
        rows = [f"{i},{row.split(',', 1)[1]}" for i, row in enumerate(rows)]
        table.write_text("\n".join(["index,path,label", *rows]))
        with pytest.raises(mlnt.InputError, match=r"'index' says other labels than the one that"):
            mlnt.open_dataset(folder, labels=table)

    def test_a_table_of_texts(self, tmp_path: Path) -> None:
        texts = [f"word{i}" for i in range(12)]
        (tmp_path / "d.csv").write_text("\n".join(["text", *texts]))
        rows = [f"{text} ,{'even' if i % 2 == 0 else 'odd'}" for i, text in enumerate(texts)]
        (tmp_path / "l.csv").write_text("\n".join(["words,label", *rows[::-1]]))
        data = mlnt.open_dataset(tmp_path / "d.csv", labels=tmp_path / "l.csv", text_column="text")
        assert data.train.labels.tolist() == [0, 1] * 6
        (tmp_path / "l.csv").write_text("\n".join(["words,label", *rows[1:], "word,even"]))
        with pytest.raises(mlnt.InputError, match=r"names 11 of the 12 .*; 'word0' is missing"):
            mlnt.open_dataset(tmp_path / "d.csv", labels=tmp_path / "l.csv", text_column="text")

    def test_data_without_names_goes_by_the_order(self, tmp_path: Path) -> None:
        rows = [f"{i}.png,{name}" for i, name in enumerate(ANIMALS)]
        (tmp_path / "l.csv").write_text("\n".join(["path,label", *rows]))
        data = mlnt.open_dataset(ROWS, labels=tmp_path / "l.csv")
        assert [data.classes[i] for i in data.train.labels.tolist()] == ANIMALS
        assert data.notes == (
            "labels: the data has no paths to compare column 'path' with; the labels are taken in "
            "their order",
        )

    @pytest.mark.parametrize("drop", [None, "id"])
    def test_an_id_that_the_table_has_too(self, drop: str | None, tmp_path: Path) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        rows = [f"{7 * i % 31},{i % 4}" for i in range(31)]
        data, labels = tmp_path / "d.csv", tmp_path / "l.csv"
        data.write_text("\n".join(["id,a", *rows]))
        named = [f"{row.split(',')[0]},1,{ANIMALS[i % 3]}" for i, row in enumerate(rows)]
        labels.write_text("\n".join(["id,b,label", *named[::-1], "99,1,cat"]))
        for source in (data, pandas.read_csv(data)):
            for what in ("labels", "true_labels"):
                own = {} if what == "labels" else {"labels": (ANIMALS * 2)[:31]}
                found = mlnt.open_dataset(source, drop_columns=drop, **{**own, what: labels})
                numbers = found.train.labels if what == "labels" else found.train.true_labels
                assert numbers is not None
                expected = [ANIMALS[i % 3] for i in range(31)]
                assert [found.classes[i] for i in numbers.tolist()] == expected
        labels.write_text("\n".join(["id,b,label", *named[:0:-1], "99,1,cat"]))
        with pytest.raises(
            mlnt.InputError, match=r"'id' .* names 30 of the 31 rows .*; '0' is mis"
        ):
            mlnt.open_dataset(data, labels=labels)


class TestColumnsOfTheDataBesideItsLabels:
    """A table with an id, written again with other labels."""

    @pytest.fixture
    def frame(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        monkeypatch.chdir(tmp_path)
        rows = range(30)
        frame = pandas.DataFrame({
            "id": rows, "a": [f"{0.37 * row:.4f}" for row in rows], "rank": rows,
            "index": [7 * row % 30 for row in rows], "label": [ANIMALS[row % 3] for row in rows],
        })  # fmt: skip
        frame.to_csv("data.csv", index=False)
        return frame

    def found(
        self, labels: Any, columns: list[str], data: str = "data.csv", drop: str | None = None
    ) -> list[str]:
        labels[columns].to_csv("labels.csv", index=False)
        dataset = mlnt.open_dataset(data, labels="labels.csv", drop_columns=drop)
        return [dataset.classes[number] for number in dataset.train.labels.tolist()]

    def test_one_that_is_equal_row_by_row_settles_the_order(self, frame: Any) -> None:
        expected = [ANIMALS[row % 2] for row in range(30)]
        changed = frame.assign(label=expected, rank=frame["rank"][::-1].tolist())
        assert self.found(changed, ["id", "rank", "label"]) == expected
        assert self.found(changed.assign(a=frame.a.astype(float)), ["a", "label"]) == expected
        edited = changed.assign(a=["9.9", *frame.a[1:]])
        assert self.found(edited, ["id", "a", "label"]) == expected
        assert self.found(edited, ["a", "label"]) == expected, "a measurement is no name"
        assert self.found(changed, ["index", "a", "label"]) == expected, "the data has it too"

    def test_numbers_are_compared_as_numbers(self, frame: Any) -> None:
        reverse = frame.iloc[::-1].assign(id=lambda some: some.id.astype(float))
        assert self.found(reverse, ["id", "label"]) == frame.label.tolist()

    @pytest.mark.parametrize("order", [1, -1])
    def test_of_the_labelled_rows_alone(self, order: int, frame: Any) -> None:
        frame.assign(label=["", "", *frame.label[2:]]).to_csv("gaps.csv", index=False)
        labelled = frame.iloc[2:]
        found = self.found(labelled[::order], ["id", "label"], "gaps.csv")
        assert found == labelled.label.tolist()

    def test_an_id_that_stands_twice_beside_the_labels(self, frame: Any) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        shuffled = frame.sample(frac=1, random_state=0)
        twice = pandas.concat([shuffled, shuffled[:1]])
        assert self.found(twice, ["id", "label"]) == frame.label.tolist()
        other = shuffled[:1].assign(label="dog" if shuffled.label.iloc[0] == "cat" else "cat")
        # As many rows as the data has: one id is missing, another has two labels, or one twice.
        with pytest.raises(mlnt.InputError, match=r"column 'id' .* twice, with the labels '"):
            self.found(pandas.concat([other, shuffled[:-1]]), ["id", "label"])
        with pytest.raises(mlnt.InputError, match=r"'id' .* gives 29 labels for 30 training"):
            self.found(pandas.concat([shuffled[:1], shuffled[:-1]]), ["id", "label"])

    def test_an_id_that_stands_twice_in_the_data(self, frame: Any) -> None:
        twice = frame.assign(id=[f"n{row}" for row in (1, *frame.id[1:])])
        twice.to_csv("twice.csv", index=False)
        expected = ["cat", *frame.label[1:]]
        reverse = twice.assign(label=expected)[::-1]
        assert self.found(reverse, ["id", "label"], "twice.csv", "id") == expected
        with pytest.raises(mlnt.InputError, match=r"'id' .* names 'n1' twice, with the labels"):
            self.found(twice[::-1], ["id", "label"], "twice.csv", "id")
        assert self.found(twice, ["id", "label"], "twice.csv", "id") == frame.label.tolist(), (
            "in order"
        )

    def test_its_name_in_capitals(self, frame: Any) -> None:
        reverse = frame[::-1].rename(columns={"id": "ID"})
        assert self.found(reverse, ["ID", "label"]) == frame.label.tolist()

    def test_measurements_in_another_order(self, frame: Any) -> None:
        edited = frame.assign(a=["9.9", *frame.a[1:]])[::-1]
        with pytest.raises(mlnt.InputError, match=r"'a' of the labels names 29 of the 30 rows"):
            self.found(edited, ["a", "label"])

    def test_numbers_of_rows_that_were_counted_anew(self, frame: Any) -> None:
        frame = frame.assign(key=[f"k{row}" for row in range(30)])
        frame.to_csv("data.csv", index=False)
        anew = frame[::-1].assign(id=range(30), index=range(30))
        with pytest.raises(mlnt.InputError, match=r"'id' .* counts the rows .* but 'key' says ano"):
            self.found(anew, ["id", "key", "label"], drop="key")
        with pytest.raises(mlnt.InputError, match=r"'index' says another order than .*'key'"):
            self.found(anew, ["index", "key", "label"], drop="key")
        assert self.found(anew[::-1].assign(index=range(30)), ["index", "key", "label"], drop="key")

    def test_an_index_that_may_mean_two_things_is_said(self, frame: Any) -> None:
        frame.assign(index=range(30))[["index", "label"]].to_csv("labels.csv", index=False)
        notes = mlnt.open_dataset("data.csv", labels="labels.csv").notes
        assert any("'index' is taken for the numbers of the rows, counted fr" in n for n in notes)

    def test_names_of_nothing_are_said(self, frame: Any) -> None:
        named = frame.assign(
            key=[f"k{row}" for row in range(30)], a=[f"{row}.25" for row in range(30)]
        )
        named[["key", "a", "id", "label"]].to_csv("labels.csv", index=False)
        said = (
            "labels: column 'key' does not name the samples of the data; the labels are taken in "
            "their order"
        )
        assert mlnt.open_dataset((ROWS, ANIMALS), labels="labels.csv").notes == (said,)
        assert said not in mlnt.open_dataset("data.csv", labels="labels.csv").notes, "the id does"
