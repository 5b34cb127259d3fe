"""One picture read: every mode, upright, cropped; what is broken says why. Folders and lists."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from clothing_tree import make_small_tree
from mlnt.data import check, pictures
from mlnt.data.check import check_tree, upper_bound
from mlnt.data.clothing1m import CLASSES, clothing1m_parts
from mlnt.data.folders import image_folder_parts
from mlnt.data.pictures import PathTable, PictureError, read_picture
from mlnt.errors import InputError

ORANGE, BLUE = (255, 128, 0), (0, 0, 255)


def plain(mode: str, colour: object, size: tuple[int, int] = (40, 30)) -> Image.Image:
    return Image.new(mode, size, colour)


def saved(path: Path, picture: Image.Image, **options: object) -> Path:
    picture.save(path, **options)
    return path


def middle(path: Path) -> list[int]:
    """The colour in the middle."""
    return read_picture(path, 32, 28)[:, 14, 14].tolist()


def palette_with_a_clear_colour() -> Image.Image:
    picture = Image.new("P", (40, 30), 1)
    picture.putpalette([*BLUE, *ORANGE])
    return picture


class TestModes:
    @pytest.mark.parametrize(
        ("name", "picture", "options", "colour"),
        [
            ("rgb.png", plain("RGB", ORANGE), {}, ORANGE),
            ("grey.png", plain("L", 77), {}, (77, 77, 77)),
            ("one.png", plain("1", 1), {}, (255, 255, 255)),
            # CMYK: red is what cyan takes away, 255 · (1 − 0.2) · (1 − 0)
            ("cmyk.tif", plain("CMYK", (51, 102, 204, 0)), {}, (204, 153, 51)),
            # 16 bits are scaled: 257 · 100 is 100, and not clipped at 255
            ("grey16.png", plain("I;16", 25_700), {}, (100, 100, 100)),
            ("white16.png", plain("I;16", 65_535), {}, (255, 255, 255)),
            ("grey16.tif", plain("I;16", 25_700), {}, (100, 100, 100)),
            # half transparent black and orange on white
            ("la.png", plain("LA", (0, 128)), {}, (127, 127, 127)),
            ("rgba.png", plain("RGBA", (*ORANGE, 128)), {}, (255, 191, 127)),
            ("clear.png", plain("RGBA", (*BLUE, 0)), {}, (255, 255, 255)),
            ("palette.png", palette_with_a_clear_colour(), {}, ORANGE),
            ("clear.gif", palette_with_a_clear_colour(), {"transparency": 1}, (255, 255, 255)),
            ("table.png", palette_with_a_clear_colour(), {"transparency": b"\xff\x80"},
             (255, 191, 127)),
            ("keyed.png", plain("RGB", ORANGE), {"transparency": ORANGE}, (255, 255, 255)),
        ],
    )  # fmt: skip
    def test_colour(
        self, tmp_path: Path, name: str, picture: Image.Image, options: dict, colour: tuple
    ) -> None:
        path = saved(tmp_path / name, picture, **options)
        np.testing.assert_allclose(middle(path), colour, atol=1)

    def test_cmyk_jpeg(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "c.jpg", plain("CMYK", (51, 102, 204, 0)), quality=100)
        np.testing.assert_allclose(middle(path), (204, 153, 51), atol=4)

    def test_modes_without_a_known_range_are_refused(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "f.tif", plain("F", 0.5))
        with pytest.raises(PictureError, match="floating-point"):
            read_picture(path)
        path = saved(tmp_path / "i.tif", plain("I", 70_000))
        with pytest.raises(PictureError, match="beyond 16 bits"):
            read_picture(path)


class TestGeometry:
    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("ending", ["jpg", "png", "tif"])
    def test_upright_by_exif(self, tmp_path: Path, orientation: int, ending: str) -> None:
        """One bright corner; the EXIF standard says where row 0 and column 0 belong."""
        stored = np.zeros((64, 64, 3), np.uint8)
        stored[:32, :32] = 255  # row 0 on top, column 0 on the left
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = saved(tmp_path / f"p.{ending}", Image.fromarray(stored), exif=exif)
        seen = read_picture(path, 64, 64)[0]
        corner = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0)}
        corner |= {5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}
        for place in ((0, 0), (0, -1), (-1, -1), (-1, 0)):
            assert seen[place] == pytest.approx(255 * (place == corner[orientation]), abs=8)

    def test_turned_pictures_are_not_only_mirrored(self, tmp_path: Path) -> None:
        """Orientation 6: the left column is the top row. 5: the same, and row 0 on the left."""
        stored = np.zeros((64, 64), np.uint8)
        stored[:32, :32], stored[32:, :32] = 100, 200  # left: 100 above 200
        for orientation, top in ((6, (200, 100)), (5, (100, 200)), (8, (0, 0)), (7, (0, 0))):
            exif = Image.Exif()
            exif[0x0112] = orientation
            path = saved(tmp_path / f"{orientation}.png", Image.fromarray(stored), exif=exif)
            seen = read_picture(path, 64, 64)[0]
            assert (seen[0, 0], seen[0, -1]) == top

    @pytest.mark.parametrize("size", [(300, 200), (200, 300), (256, 256), (1, 1), (900, 5)])
    def test_the_shorter_side_is_resized_and_the_middle_cropped(
        self, tmp_path: Path, size: tuple[int, int]
    ) -> None:
        width, height = size
        ramp = np.linspace(0, 255, width)[None, :, None] * np.ones((height, 1, 3))
        path = saved(tmp_path / "p.png", Image.fromarray(ramp.astype(np.uint8)))
        seen = read_picture(path)
        assert seen.shape == (3, 224, 224)
        assert seen.dtype == np.uint8
        assert seen.flags.c_contiguous
        # Of the shorter side 224/256 is seen, in the middle.
        seen_width = min(size) * 224 / 256
        if width > 1:
            first = 255 * ((width - seen_width) / 2 - 0.5) / (width - 1)
            assert seen[0, 112, 0] == pytest.approx(first, abs=2.5)
        assert abs(int(seen[0, 112, 0]) + int(seen[0, 112, -1]) - 255) <= 2 or width == 1

    def test_a_large_jpeg_is_decoded_small_but_not_too_small(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (40, 52, 3)).astype(np.uint8)
        large = Image.fromarray(noise).resize((1040, 800), Image.Resampling.BICUBIC)
        path = saved(tmp_path / "large.jpg", large, quality=95)
        exact = saved(tmp_path / "large.png", Image.open(path))
        decoded: list[int] = []

        def to_rgb(picture: Image.Image) -> Image.Image:
            decoded.append(min(picture.size))
            return original(picture)

        original = pictures.to_rgb
        monkeypatch.setattr(pictures, "to_rgb", to_rgb)
        for size in (150, 256, 400, 401, 800):
            seen, full = read_picture(path, size, 112), read_picture(exact, size, 112)
            assert np.abs(seen.astype(int) - full).mean() < 3
        assert decoded[::2] == [200, 400, 400, 800, 800]


class TestBroken:
    def test_reasons(self, tmp_path: Path) -> None:
        whole = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 256, (60, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(whole, "JPEG")
        contents = {
            "cut.jpg": (whole.getvalue()[:1500], "truncated"),
            "empty.jpg": (b"", "empty file"),
            "page.jpg": (b"<html>not found</html>", "no picture of a known format"),
            "eps.jpg": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no picture"),
        }
        for name, (content, reason) in contents.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(PictureError, match=reason):
                read_picture(tmp_path / name)
        with pytest.raises(PictureError, match="missing"):
            read_picture(tmp_path / "none.jpg")
        with pytest.raises(PictureError, match="directory"):
            read_picture(tmp_path)

    def test_decompression_bombs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = saved(tmp_path / "bomb.png", plain("1", 0, (400, 400)))
        for limit in (100_000, 50_000):  # above once it warns, above twice it refuses
            monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
            with pytest.raises(PictureError, match=f"more than {limit:,} pixels"):
                read_picture(path)

    def test_any_damage_is_a_picture_error(self, tmp_path: Path) -> None:
        generator, reasons = np.random.default_rng(0), []
        for ending in ("jpg", "png", "gif", "tif", "webp", "bmp"):
            whole = saved(tmp_path / f"p.{ending}", plain("RGB", ORANGE)).read_bytes()
            for _ in range(40):
                damaged = bytearray(whole)
                for place in generator.integers(0, len(whole), 6).tolist():
                    damaged[place] = int(generator.integers(256))
                path = tmp_path / f"damaged.{ending}"
                path.write_bytes(damaged[: int(generator.integers(1, len(whole) + 1))])
                try:
                    assert read_picture(path, 32, 28).shape == (3, 28, 28)
                except PictureError as error:
                    reasons.append(str(error))
        assert len(reasons) > 100
        assert all(0 < len(reason) < 120 and "\n" not in reason for reason in reasons)


def test_path_table() -> None:
    table = PathTable.of("/root", ["a/1.jpg", "b/é.jpg", b"c/\xff.jpg", ""])
    assert list(table) == ["a/1.jpg", "b/é.jpg", os.fsdecode(b"c/\xff.jpg"), ""]
    assert table[-2:][0] == os.fsdecode(b"c/\xff.jpg")
    assert table.full(0) == "/root/a/1.jpg"
    some = table.take(torch.tensor([1, 0, 1])).take(torch.tensor([2, 1]))
    assert list(some) == ["b/é.jpg", "a/1.jpg"]
    assert some.names is table.names, "the text is shared"


class TestFolders:
    def make(self, root: Path, *paths: str) -> None:
        for path in paths:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()

    def test_classes_without_a_split(self, tmp_path: Path) -> None:
        self.make(tmp_path, "b/2.PNG", "b/1.jpg", "a/x/3.jpg", "a/.h.jpg", "a/n.txt", ".git/4.jpg")
        (tmp_path / "empty").mkdir()
        parts = image_folder_parts(tmp_path)
        assert parts.classes == ("a", "b")
        assert list(parts.train.paths) == ["a/x/3.jpg", "b/1.jpg", "b/2.PNG"]
        assert parts.train.labels.tolist() == [0, 1, 1]
        assert parts.validation is None
        assert parts.notes == ("class 'empty' has no pictures in train",)

    @pytest.mark.parametrize("name", ["validation", "val", "valid"])
    def test_splits(self, tmp_path: Path, name: str) -> None:
        self.make(tmp_path, "train/a/1.jpg", "train/b/2.jpg", f"{name}/b/3.jpg", "test/a/4.jpg")
        parts = image_folder_parts(tmp_path)
        assert list(parts.train.paths) == ["train/a/1.jpg", "train/b/2.jpg"]
        assert list(parts.validation.paths) == [f"{name}/b/3.jpg"]
        assert parts.validation.labels.tolist() == [1]
        assert parts.test.labels.tolist() == [0]
        assert "class 'a' has no pictures in validation" in parts.notes

    def test_a_class_may_be_called_train(self, tmp_path: Path) -> None:
        self.make(tmp_path, "train/1.jpg", "ship/2.jpg", "test/3.jpg")
        assert image_folder_parts(tmp_path).classes == ("ship", "test", "train")

    @pytest.mark.parametrize(
        ("paths", "message"),
        [
            (["1.jpg"], "one folder per class"),
            (["test/a/1.jpg"], "has test, but no train"),
            (["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"], "both val and valid"),
            (["train/a/1.jpg", "test/b/1.jpg"], "class 'b' has pictures in test, but none in"),
        ],
    )
    def test_what_is_wrong(self, tmp_path: Path, paths: list[str], message: str) -> None:
        self.make(tmp_path, *paths)
        with pytest.raises(InputError, match=message):
            image_folder_parts(tmp_path)
        with pytest.raises(InputError, match="no folder at"):
            image_folder_parts(tmp_path / "none")

    def test_links(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        self.make(root, "a/1.jpg", "b/2.jpg")
        self.make(tmp_path, "outside/secret.jpg")
        (root / "a" / "loop").symlink_to(root)
        (root / "a" / "same.jpg").symlink_to(root / "b" / "2.jpg")
        (root / "a" / "out.jpg").symlink_to(tmp_path / "outside" / "secret.jpg")
        (root / "a" / "broken.jpg").symlink_to(root / "nowhere.jpg")
        (root / "c").symlink_to(tmp_path / "outside")
        parts = image_folder_parts(root)
        assert list(parts.train.paths) == ["a/1.jpg", "a/same.jpg", "b/2.jpg"]


class TestClothing1M:
    def test_parts(self, tmp_path: Path) -> None:
        make_small_tree(tmp_path, 4, wrong=0.4)
        parts = clothing1m_parts(tmp_path)
        assert parts.classes == CLASSES
        assert [len(p.paths) for p in (parts.train, parts.validation, parts.test)] == [56, 28, 28]
        assert parts.test.labels.tolist() == sorted(list(range(14)) * 2)
        wrong = parts.train.labels != torch.arange(14).repeat_interleave(4)
        assert 0.2 < wrong.double().mean() < 0.6
        assert Path(parts.train.paths.full(3)).is_file()

    def test_the_tree_is_learnable_by_its_colours(self, tmp_path: Path) -> None:
        parts = clothing1m_parts(make_small_tree(tmp_path, 4, classes=5))

        def colours(part: object) -> np.ndarray:
            table = part.paths
            return np.array(
                [read_picture(p, 8, 8).mean((1, 2)) for p in map(table.full, range(len(table)))]
            )

        train, test = colours(parts.train), colours(parts.test)
        nearest = ((test[:, None] - train[None]) ** 2).sum(2).argmin(1)
        assert (parts.train.labels[nearest] == parts.test.labels).all()

    def test_lists_in_annotations_and_names_as_published(self, tmp_path: Path) -> None:
        make_small_tree(tmp_path, 1)
        (tmp_path / "annotations").mkdir()
        for path in tmp_path.glob("*.txt"):
            path.rename(tmp_path / "annotations" / path.name)
        (tmp_path / "annotations" / "category_names_eng.txt").unlink()
        assert clothing1m_parts(tmp_path).classes == CLASSES

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("noisy_train_key_list.txt", "images/../../x.jpg\n", r"line 1 .* lead down"),
            ("noisy_train_key_list.txt", "/etc/passwd\n", "must lead down from the folder"),
            ("noisy_train_key_list.txt", "images\\1.jpg\n", "must lead down from the folder"),
            ("noisy_train_key_list.txt", "images/a..b.jpg\n", "have no label"),
            ("clean_val_key_list.txt", "images/none.jpg\n", "1 of the 1 pictures .* have no label"),
            ("clean_test_key_list.txt", "\n", "names no pictures"),
            ("noisy_label_kv.txt", "images/1.jpg\n", "line 1 must be a path and the number"),
            ("noisy_label_kv.txt", "images/1.jpg -3\n", "line 1 must be a path and the number"),
            ("category_names_eng.txt", "A\nB\n", "have a label beyond 0 to 1"),
            ("category_names_eng.txt", "A\nA\n", "each once"),
        ],
    )
    def test_what_is_wrong(self, tmp_path: Path, file: str, content: str, message: str) -> None:
        make_small_tree(tmp_path, 1)
        (tmp_path / file).write_text(content)
        with pytest.raises(InputError, match=message):
            clothing1m_parts(tmp_path)

    def test_lists_or_pictures_missing(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no Clothing1M tree"):
            clothing1m_parts(tmp_path)
        make_small_tree(tmp_path, 1)
        (tmp_path / "images").rename(tmp_path / "pictures")
        with pytest.raises(InputError, match="no folder images"):
            clothing1m_parts(tmp_path)
        (tmp_path / "clean_label_kv.txt").unlink()
        with pytest.raises(InputError, match=r"lacks clean_label_kv\.txt"):
            clothing1m_parts(tmp_path)


class SlowClock:
    """A second passes whenever it is looked at."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


class TestCheck:
    def test_complete(self, tmp_path: Path) -> None:
        report = check_tree(make_small_tree(tmp_path, 2))
        assert report.ok
        assert report.verdict == "complete: 56 pictures are there, and all can be read"
        assert report.decoded == report.looked_for == 56
        assert report.parts[0].per_class == [2] * 14
        assert "1,000,000 were published" in report.notes[0]

    def test_every_fault_is_counted(self, tmp_path: Path) -> None:
        make_small_tree(tmp_path, 4)
        pictures = sorted((tmp_path / "images").rglob("noisy*.jpg"))
        for path in pictures[:3]:
            path.unlink()
        pictures[3].write_bytes(b"broken")
        labels = (tmp_path / "noisy_label_kv.txt").read_text().splitlines()
        key = labels[0].split()[0]
        (tmp_path / "noisy_label_kv.txt").write_text("\n".join([f"{key} 14", *labels[2:]]))
        (tmp_path / "clean_test_key_list.txt").unlink()
        report = check_tree(tmp_path)
        assert not report.ok
        assert [part.name for part in report.parts] == ["train", "validation"]
        assert report.parts[0].out_of_range == report.parts[0].without_label == 1
        assert len(report.missing) == 3
        assert list(report.unreadable.values()) == ["no picture of a known format"]
        assert report.unreadable_share == 1 / (56 + 28 - 3)
        lines = [part for part in report.to_rich() if isinstance(part, str)]
        assert "fault: clean_test_key_list.txt is missing" in lines
        assert lines[-1].startswith("not complete: clean_test_key_list.txt is missing and 4 more")

    def test_a_sample_and_its_bound(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_small_tree(tmp_path, 2)
        monkeypatch.setattr(check, "time", SlowClock())
        report = check_tree(tmp_path, seconds=60)
        assert report.ok
        assert 10 < report.decoded < 56
        # 0 of n bad: p with (1 − p)^n = 0.05
        assert report.upper_bound == pytest.approx(1 - 0.05 ** (1 / report.decoded))
        assert "with 95 % confidence" in report.verdict

    def test_time_over_while_listing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        make_small_tree(tmp_path, 2)
        monkeypatch.setattr(check, "time", SlowClock())
        report = check_tree(tmp_path, seconds=20)
        assert 0 < report.looked_for < 56
        assert "looked for, all there" in report.verdict
        assert any("took too long" in note for note in report.notes)

    def test_image_folder_and_others(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            saved(tmp_path / name / "1.png", plain("RGB", ORANGE))
        assert check_tree(tmp_path).verdict.startswith("complete: 2 pictures are there")
        (tmp_path / "data_batch_1.bin").touch()
        with pytest.raises(InputError, match="not a picture tree: it holds CIFAR-10"):
            check_tree(tmp_path)

    @pytest.mark.parametrize(
        ("bad", "tried", "bound"),
        [(0, 100, 0.029513), (1, 100, 0.046559), (5, 5, 1.0), (0, 0, 1.0), (0, 1, 0.95)],
    )
    def test_upper_bound(self, bad: int, tried: int, bound: float) -> None:
        assert upper_bound(bad, tried) == pytest.approx(bound, abs=1e-6)
