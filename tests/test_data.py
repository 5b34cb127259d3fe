"""Opening data: files, arrays, labels; what is wrong with them is said in one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import mlnt
from mlnt.config import make_settings
from mlnt.data.batches import Augmentation, Shuffled, random_crop, random_cutout, random_flip
from mlnt.data.encoding import ImageEncoder, encoder_from_json, encoder_to_json
from mlnt.data.prepare import hold_out, prepare
from mlnt.data.text_encoding import TextEncoder, split_words

PANDAS_IS_OPTIONAL = "mlnt takes data frames but does not need pandas; the extra dev has it"


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


class TestDigits:
    def test_split_is_fixed_and_stratified(self) -> None:
        first, second = mlnt.open_dataset("digits"), mlnt.open_dataset("digits")
        assert torch.equal(first.test.inputs, second.test.inputs)
        assert len(first.train) + len(first.test) == 1797
        assert first.train.inputs.shape[1:] == (1, 8, 8)
        share = torch.bincount(first.test.labels) / torch.bincount(
            torch.cat([first.train.labels, first.test.labels])
        )
        assert ((share > 0.24) & (share <= 0.25)).all()

    def test_pixels_have_zero_mean_and_unit_variance_in_training(self) -> None:
        inputs = mlnt.open_dataset("digits").train.inputs
        assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
        assert inputs.std(correction=0).item() == pytest.approx(1, abs=1e-5)

    @pytest.mark.parametrize(
        ("of_each", "held_out"), [([5] * 100, 50), ([5, 5], 1), ([4] * 3, 1), ([1, 1, 4, 4], 1)]
    )
    def test_hold_out_of_many_small_classes(self, of_each: list[int], held_out: int) -> None:
        labels = [number for number, count in enumerate(of_each) for _ in range(count)]
        data = mlnt.open_dataset((np.ones((len(labels), 2)), labels))
        held = hold_out(data, 0.1, torch.Generator().manual_seed(0))
        assert held.validation is not None
        assert len(held.validation) == held_out
        assert held.train.labels.unique().tolist() == list(range(len(of_each)))
        assert held.validation.labels.bincount().max() == 1

    def test_too_few_to_hold_out(self) -> None:
        data = mlnt.open_dataset((np.ones((200, 2)), list(range(200))))
        with pytest.raises(mlnt.InputError, match=r"200 classes are too few .* measurements"):
            hold_out(data, 0.1, torch.Generator())

    def test_hold_out_takes_a_share_of_each_class_once(self) -> None:
        whole = mlnt.open_dataset("digits")
        held = hold_out(whole, 0.1, torch.Generator().manual_seed(0))
        assert len(held.train) + len(held.validation) == len(whole.train)
        counts = torch.bincount(held.validation.labels)
        assert (counts - torch.bincount(whole.train.labels) * 0.1).abs().max() <= 0.5
        assert torch.equal(whole.train.inputs[held.train_indices], held.train.inputs)

    def test_a_known_data_set_has_no_validation_data(self) -> None:
        with pytest.raises(mlnt.InputError, match=r"is what digits is trained on, .* held out, or"):
            mlnt.open_dataset("digits", validation="digits")
        digits = load_digits()
        others = (digits.images[:20], digits.target[:20])
        assert len(mlnt.open_dataset("digits", validation=others).validation or ()) == 20

    @pytest.mark.parametrize(("policy", "hit"), [("noisy", True), ("clean", False)])
    def test_noise_and_what_came_out(self, policy: str, hit: bool) -> None:
        settings = make_settings("digits", noise="symmetric:0.7", validation=policy)
        data, record = prepare(mlnt.open_dataset("digits"), settings)
        wrong = 100 * (data.train.labels != data.train.true_labels).double().mean().item()
        assert record["wrong_in_train"] == pytest.approx(wrong)
        assert record["wrong_in_train"] == pytest.approx(63, abs=4)
        assert (record["wrong_in_validation"] > 40) == hit
        again, _ = prepare(mlnt.open_dataset("digits"), settings)
        assert torch.equal(again.train.labels, data.train.labels)
        assert torch.equal(data.test.labels, mlnt.open_dataset("digits").test.labels)


class TestTables:
    def test_numeric_columns(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", ",a,b,label\n0,1,5,yes\n1,3,5,no\n2,2,5,yes\n")
        data = mlnt.open_dataset(path)
        assert data.kind == "table"
        assert data.encoder.columns == ("a", "b")
        assert data.classes == ("no", "yes")
        assert data.train.labels.tolist() == [1, 0, 1]
        expected = np.array([-1.0, 1.0, 0.0]) / np.std([1, 3, 2])
        np.testing.assert_allclose(data.train.inputs[:, 0], expected, rtol=1e-6)
        assert (data.train.inputs[:, 1] == 0).all(), "a constant column stays at zero"

    def test_text_column(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.tsv", "\ttitle\tlabel\n0\tgood good day\tA\n1\tbad day\tB\n")
        data = mlnt.open_dataset(path)
        assert data.kind == "text"
        assert data.encoder.words == ("day", "good")
        assert data.train.inputs.tolist() == [[3, 3], [1, 2]]
        assert data.train.texts == ["good good day", "bad day"]

    @pytest.mark.parametrize("mark", [",", ";", "\t"])
    def test_what_stands_between_the_columns(self, tmp_path: Path, mark: str) -> None:
        lines = ["a,label", "0.5,x", "1.5,y", "2.5,x"]
        (tmp_path / "t.csv").write_text("\n".join(lines).replace(",", mark))
        data = mlnt.open_dataset(tmp_path / "t.csv")
        assert data.classes == ("x", "y")
        assert data.train.inputs.shape == (3, 1)

    def test_label_column_by_name_and_sorted_numbers(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "a,kind\n1,10\n2,9\n3,10\n")
        data = mlnt.open_dataset(path, label_column="kind")
        assert data.classes == ("9", "10")

    def test_validation_and_test_files_use_the_training_encoding(self, tmp_path: Path) -> None:
        train = write(tmp_path / "train.csv", "a,label\n0,x\n2,y\n")
        other = write(tmp_path / "test.csv", "a,label\n1,y\n3,x\n")
        data = mlnt.open_dataset(train, validation=other, test=other)
        assert data.test.inputs.flatten().tolist() == [0.0, 2.0]
        assert data.validation.labels.tolist() == [1, 0]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("a,label\n1,x\n", "one class only"),
            ("a,label\n1,x\n2,x\n", r"one class only \('x'\)"),
            ("a,label\n1,x\ninf,y\n", "row 2 has 'inf' in column 'a'"),
            ("a,label\n1,x\n2,\n", r"one class only \('x'\)"),
            ("a,label\n1,\n2,\n", "row 1 has no label"),
            ("a,label\n1,x\n2\n", "row 2 has 1 cell, the header has 2"),
            ("a,b,label\n1,red,x\n2,4,y\n", "column 'b' is not numeric .row 1: 'red'"),
            ("a,b,label\nq,red,x\nw,4e,y\n", "several columns of words .a, b."),
            ("label\nx\ny\n", "nothing to learn from"),
            ("a,b\n1,2\n3,4\n", "has no labels"),
            ("a,label\n", "at least one row"),
            ("", "at least one row"),
        ],
    )
    def test_what_is_wrong(self, tmp_path: Path, content: str, message: str) -> None:
        path = write(tmp_path / "t.csv", content)
        with pytest.raises(mlnt.InputError, match=message):
            mlnt.open_dataset(path)

    def test_misspelt_column(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.csv", "a,species\n1,x\n2,y\n")
        with pytest.raises(mlnt.InputError, match="no column 'specie'; did you mean 'species'"):
            mlnt.open_dataset(path, label_column="specie")

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_bytes(b"a,label\n1,\xff\xfe\n")
        with pytest.raises(
            mlnt.InputError,
            match=r"not UTF-8 text \(.*invalid start byte\); save it as UTF-8, or: iconv -f latin1 "
            r"-t utf8 .*t\.csv > NEW\.csv",
        ):
            mlnt.open_dataset(path)

    def test_a_picture_is_no_table(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\r")
        with pytest.raises(mlnt.InputError, match="not UTF-8 text, nor any other"):
            mlnt.open_dataset(path)

    @pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
    def test_utf16(self, tmp_path: Path, mark: bytes) -> None:
        coding = "utf-16-le" if mark[0] == 0xFF else "utf-16-be"
        path = tmp_path / "t.csv"
        path.write_bytes(mark + "a,label\n1,x\n2,y\n".encode(coding))
        message = (
            r"is UTF-16 text; save it as UTF-8, or: iconv -f utf16 -t utf8 .*t\.csv > NEW\.csv"
        )
        with pytest.raises(mlnt.InputError, match=message):
            mlnt.open_dataset(path)


class TestArrays:
    def test_rows_images_texts(self) -> None:
        labels = ["b", "a", "b"]
        assert mlnt.open_dataset((np.eye(3), labels)).kind == "table"
        last = mlnt.open_dataset((np.random.default_rng(0).random((3, 6, 5, 3)), labels))
        assert last.train.inputs.shape == (3, 3, 6, 5), "channels are moved to the front"
        assert mlnt.open_dataset((torch.rand(3, 6, 5), labels)).train.inputs.shape[1:] == (1, 6, 5)
        texts = mlnt.open_dataset((["a b", "b c", "b"], [0, 1, 0]))
        assert texts.kind == "text"
        assert texts.classes == ("0", "1")

    def test_npz(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", X=np.eye(4), y=np.array([0, 1, 0, 1]))
        assert len(mlnt.open_dataset(tmp_path / "d.npz").train) == 4
        np.savez(tmp_path / "bad.npz", images=np.eye(4))
        with pytest.raises(
            mlnt.InputError, match=r"must hold arrays X and y \(or .*\), it holds images"
        ):
            mlnt.open_dataset(tmp_path / "bad.npz")

    def test_pickled_arrays_are_refused(self, tmp_path: Path) -> None:
        names = np.array(["a", "b"], dtype=object)
        np.savez(tmp_path / "d.npz", X=np.eye(2), y=names)
        said = r"not a readable \.npz of plain arrays: .* pickled .*names as y\.astype\(str\)"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(tmp_path / "d.npz")

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ((np.eye(3), [0, 1]), "3 samples but 2 labels"),
            ((np.array([[np.nan, 1], [0, 1]]), [0, 1]), "NaN or infinite"),
            ((np.eye(2), [0, np.nan]), "at index 1 there is nan"),
            ((np.zeros(3), [0, 1, 0]), "got shape"),
            ((np.array([[object()]]), [0]), "numbers or texts"),
            ((np.zeros((0, 2)), []), "no samples"),
            ((np.eye(2), [[0], [1]]), "one row"),
        ],
    )
    def test_what_is_wrong(self, data: tuple, message: str) -> None:
        with pytest.raises(mlnt.InputError, match=message):
            mlnt.open_dataset(data)

    def test_texts_in_an_array_of_objects(self) -> None:
        texts, labels = ["good day", "bad day"] * 20, ["+", "-"] * 20
        array = np.array(texts, dtype=object)
        assert mlnt.open_dataset((array, labels)).train.texts == texts
        array[3] = None
        with pytest.raises(mlnt.InputError, match="at index 3 there is None"):
            mlnt.open_dataset((array, labels))

    def test_texts_as_bytes(self, tmp_path: Path) -> None:
        texts, labels = ["schöner Tag", "bad day"] * 20, ["+", "-"] * 20
        encoded = [text.encode() for text in texts]
        np.savez(tmp_path / "d.npz", X=np.array(encoded), y=labels)
        for data in (
            (encoded, labels),
            (np.array(encoded), labels),
            (np.array(encoded)[:, None], labels),
            (np.array(encoded, dtype=object), labels),
            tmp_path / "d.npz",
        ):
            assert mlnt.open_dataset(data).train.texts == texts
        encoded[3] = "müde".encode("latin-1")
        with pytest.raises(mlnt.InputError, match="at index 3 there are bytes that are not UTF-8"):
            mlnt.open_dataset((np.array(encoded), labels))

    def test_texts_in_a_column(self) -> None:
        pandas = pytest.importorskip("pandas", reason=PANDAS_IS_OPTIONAL)
        column = pandas.Series(["good day", "bad day"] * 20)
        for held in (column, column.to_frame()):
            assert mlnt.open_dataset((held, ["+", "-"] * 20)).train.texts == list(column)

    def test_columns_of_a_data_frame_are_found_by_name(self) -> None:
        pandas = pytest.importorskip("pandas", reason=PANDAS_IS_OPTIONAL)
        frame = pandas.DataFrame({"a": range(20), "b": [1.0, 5.0] * 10})
        labels = ["x", "y"] * 10
        turned = frame[["b", "a"]].assign(c=0.0)
        data = mlnt.open_dataset((frame, labels), test=(turned, labels))
        assert data.encoder.columns == ("a", "b")
        assert data.test is not None
        assert torch.equal(data.test.inputs, data.train.inputs)
        with pytest.raises(mlnt.InputError, match=r"'b' is missing \(columns: a, c\)"):
            mlnt.open_dataset((frame, labels), test=(turned[["a", "c"]], labels))
        unnamed = mlnt.open_dataset((frame.to_numpy(), labels), test=(frame, labels))
        assert unnamed.test is not None, "numbers without names have their order"


class TestLabels:
    def test_missing_ones(self, tmp_path: Path) -> None:
        samples = write(tmp_path / "s.csv", "a\n1\n2\n3\n")
        gap = write(tmp_path / "gap.csv", "label\nx\n \ny\n")
        with pytest.raises(mlnt.InputError, match="row 2 has no label"):
            mlnt.open_dataset(samples, labels=gap)
        with pytest.raises(mlnt.InputError, match="label at index 1 is missing"):
            mlnt.open_dataset((np.eye(3), ["x", "", "y"]))

    def test_from_a_sequence_and_an_npz(self, tmp_path: Path) -> None:
        size = len(mlnt.open_dataset("digits").train)
        other = np.arange(size) % 10
        np.savez(tmp_path / "l.npz", worse=other.astype(np.uint8))
        place = f"{tmp_path / 'l.npz'}:worse"
        for labels in (other, place):
            data = mlnt.open_dataset("digits", labels=labels)
            assert torch.equal(data.train.labels, torch.from_numpy(other))
            assert data.train.true_labels is not None, "the true ones are still known"
        with pytest.raises(mlnt.InputError, match="has no 'better', it holds worse"):
            mlnt.open_dataset("digits", labels=f"{tmp_path / 'l.npz'}:better")

    def test_out_of_range_or_too_few(self) -> None:
        size = len(mlnt.open_dataset("digits").train)
        with pytest.raises(mlnt.InputError, match=r"label '12' \(at index 3\) is not a class"):
            mlnt.open_dataset("digits", labels=[0, 1, 2, 12] + [0] * (size - 4))
        with pytest.raises(mlnt.InputError, match=f"2 labels for {size:,} training samples"):
            mlnt.open_dataset("digits", labels=[0, 1])

    def test_true_labels_from_a_table(self, tmp_path: Path) -> None:
        noisy = write(tmp_path / "noisy.csv", "a,label\n1,x\n2,y\n3,x\n")
        clean = write(tmp_path / "clean.csv", "a,label\n1,x\n2,x\n3,y\n")
        data = mlnt.open_dataset(noisy, true_labels=clean)
        assert data.train.true_labels.tolist() == [0, 0, 1]


def test_unknown_data_set() -> None:
    with pytest.raises(mlnt.InputError, match="no data set 'digit'; did you mean 'digits'"):
        mlnt.open_dataset("digit")


def test_cifar10_binary_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    first = generator.integers(0, 256, (10_000, 3073), dtype=np.uint8)
    first[:, 0] %= 10
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        (tmp_path / f"{name}.bin").write_bytes(first.tobytes())
    data = mlnt.open_dataset(tmp_path)
    assert data.name == "cifar10"
    assert len(data.train) == 50_000
    assert data.train.labels[:3].tolist() == first[:3, 0].tolist()
    assert data.test.labels[:3].tolist() == first[:3, 0].tolist()
    red = (first[0, 1] - data.encoder.mean[0]) / data.encoder.std[0]
    assert data.train.inputs[0, 0, 0, 0].item() == pytest.approx(red, abs=1e-5)
    (tmp_path / "data_batch_3.bin").write_bytes(b"short")
    with pytest.raises(mlnt.InputError, match="10,000 records"):
        mlnt.open_dataset(tmp_path)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (40, 2, 6, 4)])
def test_mean_and_spread_of_bytes_are_those_of_the_numbers(shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    counted, computed = (ImageEncoder.fit(images.astype(kind)) for kind in (np.uint8, np.int64))
    assert counted.mean == computed.mean
    assert counted.std == pytest.approx(computed.std, rel=1e-14)


def test_encoders_survive_json() -> None:
    for source in ("digits", (np.eye(3), [0, 1, 0]), (["a a", "b b"], [0, 1])):
        encoder = mlnt.open_dataset(source).encoder
        assert encoder_from_json(encoder_to_json(encoder)) == encoder


def test_words_keep_their_marks() -> None:
    assert split_words("हिन्दी में समाचार। கல்வி") == ["हिन्दी", "में", "समाचार", "கல்வி"]
    before = TextEncoder(("ह", "न"), 3)  # of a run from before
    assert before.encode(["हिन्दी"]).tolist() != [[1, 0, 0]]
    assert TextEncoder.fit(["हिन्दी में"] * 3).encode(["में हिन्दी"]).tolist() == [[2, 3]]
    assert split_words("cafe\u0301 שָׁלוֹם") == ["cafe\u0301", "שָׁלוֹם"]


def test_words_of_any_language() -> None:
    assert split_words("‘Yan Sanda Sun Je Ta'addanci, 2019!") == [
        "yan", "sanda", "sun", "je", "ta'addanci", "2019",
    ]  # fmt: skip
    encoder = TextEncoder(("a",), 3)
    assert encoder.encode(["", "...", "a zz a a a"]).tolist() == [[1, 0, 0], [1, 0, 0], [2, 1, 2]]


def test_shuffled_batches_cover_everything_before_any_repeats() -> None:
    def draw(stream: Shuffled) -> torch.Tensor:
        stream.advance()
        return stream.take()

    stream = Shuffled(torch.arange(100, 110), 3, torch.Generator().manual_seed(0))
    for _ in range(4):
        seen = torch.cat([draw(stream) for _ in range(3)]).tolist()
        assert len(set(seen)) == 9
        assert set(seen) <= set(range(100, 110))
    small = Shuffled(torch.tensor([7]), 3, torch.Generator().manual_seed(0))
    assert draw(small).tolist() == [7]


def test_crops_shift_by_at_most_the_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(500, 1, 8, 8)
    images[:, :, 4, 4] = 1
    moved = random_crop(images, 2, generator)
    assert moved.shape == images.shape
    positions = {tuple(p[2:]) for p in moved.nonzero().tolist()}
    assert positions == {(r, c) for r in range(2, 7) for c in range(2, 7)}
    assert moved.sum() == 500


def test_flips_are_left_to_right_and_half_of_the_time() -> None:
    images = torch.arange(4.0).expand(1000, 1, 2, 4)
    flipped = random_flip(images, torch.Generator().manual_seed(0))
    is_flipped = (flipped[:, 0, 0, 0] == 3).sum().item()
    assert 420 < is_flipped < 580
    assert ((flipped == images) | (flipped == images.flip(3))).all()
    assert torch.equal(Augmentation()(images, torch.Generator()), images)


def test_cutout_blanks_one_square_around_any_pixel() -> None:
    images = torch.ones(2000, 2, 8, 6)
    cut = random_cutout(images, 4, torch.Generator().manual_seed(0))
    blank = cut == 0
    assert torch.equal(blank[:, 0], blank[:, 1])
    for of_image in blank[:100, 0]:
        rows, columns = of_image.any(1).nonzero(), of_image.any(0).nonzero()
        # One solid rectangle: a square, less what lies outside.
        assert of_image.sum() == len(rows) * len(columns)
        assert len(rows) == rows.max() - rows.min() + 1 <= 4
        assert len(columns) == columns.max() - columns.min() + 1 <= 4
    assert blank[:, 0].any(0).all()
    assert blank[:, 0].sum((1, 2)).max() == 16
    # Each pixel of the middle lies in 4 × 4 of the 8 × 6 squares.
    assert abs(blank[:, 0, 4, 3].double().mean() - 16 / 48) < 0.05


def test_augmentation_is_for_images_alone() -> None:
    settings = make_settings("digits", crop_padding=2, flip=True, cutout=3)
    assert Augmentation.of(settings, torch.zeros(5, 1, 8, 8)) == Augmentation(2, True, 3)
    assert Augmentation.of(settings, torch.zeros(5, 20)) == Augmentation()
