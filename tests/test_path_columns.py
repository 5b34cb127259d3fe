"""Columns of paths of pictures are found by what they hold, and never learnt from as words."""

from pathlib import Path

import pytest
from PIL import Image

import mlnt
from mlnt.data import picture_tables
from mlnt.data.check import check_tree
from mlnt.data.image_files import ImageFiles
from mlnt.data.pictures import are_picture_paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(16):
        colour = (220, 30, number) if number % 2 else (30, 220, number)
        place = tmp_path / ("red" if number % 2 else "green")
        place.mkdir(exist_ok=True)
        Image.new("RGB", (10, 10), colour).save(place / f"{number}.PNG")
    return tmp_path


def table(folder: Path, header: str, more: str = "", name: str = "t.csv") -> Path:
    rows = [(f"red/{n}.PNG", "red") if n % 2 else (f"green/{n}.PNG", "green") for n in range(16)]
    lines = [header, *(f"{path},{more}{label}" for path, label in rows)]
    (folder / name).write_text("\n".join(lines))
    return folder / name


@pytest.mark.parametrize("name", ["path", "image_path", "img", "filepath", "file_name", "X", ""])
def test_whatever_their_name(folder: Path, name: str) -> None:
    data = mlnt.open_dataset(table(folder, f"{name},label"))
    assert isinstance(data.train.inputs, ImageFiles)
    assert data.train.inputs.paths[0] == "green/0.PNG"
    assert data.classes == ("green", "red")
    assert data.notes == ()


def test_a_few_cells_may_be_something_else(folder: Path) -> None:
    assert are_picture_paths(["a.jpg"] * 9 + [""])
    assert not are_picture_paths(["a.jpg"] * 8 + ["", "none"])
    assert not are_picture_paths(["a.jpg is a file", "what a picture."])
    path = table(folder, "img,label")
    path.write_text(path.read_text().replace("green/0.PNG", "?"))
    assert isinstance(mlnt.open_dataset(path).train.inputs, ImageFiles)


def test_what_stands_beside_them_is_named(folder: Path) -> None:
    data = mlnt.open_dataset(table(folder, "img,width,title,label", "10,a fine day,"))
    assert data.notes == ("passing over width, title",)
    titles = mlnt.open_dataset(table(folder, "img,n,title,label", "1,x y,"), text_column="title")
    assert titles.kind == "text", "whoever names a text column wants no pictures"


def test_of_several_the_usual_name_counts(folder: Path) -> None:
    path = table(folder, "mask,image,label", "red/1.PNG,")
    assert mlnt.open_dataset(path).train.inputs.paths[0] == "red/1.PNG"
    with pytest.raises(mlnt.InputError, match=r"several columns of paths .*\(mask, img\); call"):
        mlnt.open_dataset(table(folder, "mask,img,label", "red/1.PNG,"))


def test_as_words_they_are_refused(folder: Path) -> None:
    said = r"t: the texts of 'img' are names of pictures \('green/0.PNG'\)"
    with pytest.raises(mlnt.InputError, match=said):
        mlnt.open_dataset(table(folder, "img,label"), text_column="img")
    with pytest.raises(mlnt.InputError, match="the texts are names of pictures"):
        mlnt.open_dataset((["cat/1.jpg", "dog/2.jpg"], ["cat", "dog"]))


def test_addresses_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("url,label\nhttp://a.b/1.png,x\nhttp://a.b/2.png,y\n")
    with pytest.raises(mlnt.InputError, match=r"row 1 has an address \('http.*fetch the pictures"):
        mlnt.open_dataset(tmp_path / "t.csv")


def test_a_table_of_pictures_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, read_rows = [], picture_tables.read_rows

    def noted(path: Path, most: int | None = None) -> tuple[list[str], list[list[str]]]:
        if most is None:
            read.append(path.name)
        return read_rows(path, most)

    monkeypatch.setattr(picture_tables, "read_rows", noted)
    data, other = table(folder, "img,label"), table(folder, "img,label", name="other.csv")
    options = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 4, "image_size": 8}
    mlnt.train(data, validation_data=other, out=folder / "run", workers=0, **options)
    mlnt.predict(folder / "run", data)
    check_tree(other, seconds=1)
    assert read == ["t.csv", "other.csv", "t.csv", "other.csv"]


@pytest.mark.parametrize("content", ["file_name\nred/1.PNG\n", "file_name,kind\nred/1.PNG,\n"])
def test_pictures_to_predict_need_no_labels(folder: Path, content: str) -> None:
    options = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 4, "image_size": 8}
    data = table(folder, "img,kind")
    mlnt.train(data, label_column="kind", out=folder / "run", workers=0, **options)
    (folder / "new.csv").write_text(content)
    found = mlnt.predict(folder / "run", folder / "new.csv")
    assert (found.samples, found.accuracy) == (["red/1.PNG"], None)
    assert mlnt.predict(folder / "run", data).accuracy is not None


def test_some_pictures_of_a_table_may_have_no_label(folder: Path) -> None:
    whole = table(folder, "img,label")
    lacking = folder / "u.csv"
    lacking.write_text(whole.read_text().replace("green/0.PNG,green", "green/0.PNG,"))
    data = mlnt.open_dataset(lacking)
    assert (len(data.train), data.train.labels.tolist()) == (15, [1, 0] * 7 + [1])
    assert "1 row without a label left out" in data.notes
    with pytest.raises(mlnt.InputError, match=r"^test data: row 1 has no label$"):
        mlnt.open_dataset(whole, test=lacking)
    options = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 4, "image_size": 8}
    mlnt.train(whole, out=folder / "run", workers=0, **options)
    found, every = (mlnt.predict(folder / "run", path) for path in (lacking, whole))
    assert found.notes == ("15 of 16 have a label to compare with",)
    assert every.accuracy is not None
    assert found.accuracy is not None
    first = every.predicted[0] == "green"
    assert found.accuracy == pytest.approx((16 * every.accuracy - 100 * first) / 15)


def test_labels_may_look_like_pictures(folder: Path) -> None:
    place = table(folder, "a,b,label")
    rows = "".join(f"{n},{n % 3},{'x.png' if n % 2 else 'y.png'}\n" for n in range(12))
    place.write_text("a,b,label\n" + rows)
    found = mlnt.open_dataset(place)
    assert (found.kind, found.classes) == ("table", ("x.png", "y.png"))


def pictures(root: Path) -> list[tuple[str, str]]:
    """Path and class of 24 pictures that lie there."""
    made = [(f"{'ab'[n % 2]}/{n}.png", "ab"[n % 2]) for n in range(24)]
    for number, (path, name) in enumerate(made):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10, 10), (9 * number, 200 * (name == "b"), 0)).save(root / path)
    return made


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_paths_from_the_root_may_lead_into_the_folder(tmp_path: Path) -> None:
    below = pictures(tmp_path)
    rows = [f"{tmp_path / path},{name}" for path, name in below]
    data = mlnt.open_dataset(write(tmp_path / "t.csv", "\n".join(["path,label", *rows])))
    assert data.train.texts is not None
    assert list(data.train.texts) == [path for path, _ in below]
    elsewhere = [f"{tmp_path}-other/{path},{name}" for path, name in below]
    with pytest.raises(mlnt.InputError, match="row 1 leads out of its folder"):
        mlnt.open_dataset(write(tmp_path / "u.csv", "\n".join(["path,label", *elsewhere])))


def test_paths_of_windows(tmp_path: Path) -> None:
    rows = [f"{path.replace('/', chr(92))},{name}" for path, name in pictures(tmp_path)]
    path = write(tmp_path / "t.csv", "\n".join(["path,label", *rows]))
    with pytest.raises(mlnt.InputError, match=r"row 1 has a path as Windows writes it .*; write"):
        mlnt.open_dataset(path)


def test_a_folder_in_a_folder(tmp_path: Path) -> None:
    pictures(tmp_path / "nest" / "data")
    with pytest.raises(
        mlnt.InputError, match=r"'data' holds folders \(a, b\); did you mean .*data\?"
    ):
        mlnt.open_dataset(tmp_path / "nest")


def test_unknown_labels_of_pictures_are_not_compared(tmp_path: Path) -> None:
    rows = [f"{path},{name}" for path, name in pictures(tmp_path)]
    train = write(tmp_path / "t.csv", "\n".join(["path,label", *rows]))
    options = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8, "model": "small_conv"}
    mlnt.train(train, out=tmp_path / "run", image_size=16, **options)
    other = write(tmp_path / "u.csv", "\n".join(["path,label", rows[0], rows[1][:-1] + "z"]))
    found = mlnt.predict(tmp_path / "run", other)
    assert (found.accuracy, found.unknown, len(found.predicted)) == (None, ("z",), 2)
    assert mlnt.predict(tmp_path / "run", train).accuracy is not None
    with pytest.raises(mlnt.InputError, match="'z', which is not a class"):
        mlnt.open_dataset(train, test=other)


def test_a_table_is_checked(tmp_path: Path) -> None:
    rows = [f"{path},{name}" for path, name in pictures(tmp_path)]
    path = write(tmp_path / "t.csv", "\n".join(["path,label", *rows, "a/none.png,a"]))
    report = check_tree(path)
    assert not report.ok
    assert "1 of 25 pictures are missing (a/none.png)" in report.verdict
    numbers = write(tmp_path / "u.csv", "n,label\n1,x\n2,y\n3,\n")
    report = check_tree(numbers)
    assert (report.ok, report.parts[0].per_class) == (True, [1, 1])
    assert report.verdict == "complete: 2 rows are there, and all can be read"
    assert check_tree(numbers, label_column="n").classes == ("1", "2", "3")
