"""The report without a browser: its figures, its texts, what it embeds and how large it becomes."""

import base64
import hashlib
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mlnt
from mlnt import gallery
from mlnt.data.encoding import TableEncoder
from mlnt.data.prepare import hold_out
from mlnt.evaluation import accuracy_by_class
from mlnt.gallery import GALLERY, decoded_number, describe, read_gallery, write_gallery
from mlnt.label_issues import harmless
from mlnt.report import charts, words, write_report
from mlnt.report.download import (
    file_name,
    label_cells,
    label_header,
    next_training,
    packed,
)
from mlnt.report.findings import Confusion, Findings, read_findings
from mlnt.report.matrix import Cell, make_matrix, short_name
from mlnt.report.page import class_keys, embedded
from mlnt.reproduce.sheet import to_pictures
from mlnt.runs import RunFolder
from mlnt.terminal import doubts, noise_line
from report_runs import HOSTILE, large_report, leave_gaps, make_issues, make_run

ESTIMATE = {"noise_rate": 38.2, "noise_interval": [36.1, 40.3], "expected_errors": 76.4}
RESULTS = Path(__file__).parents[1] / "results"
VOID = {"meta", "link", "input", "img", "br"}


class Page(HTMLParser):
    """Elements, attributes and texts of a page; every tag must be closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []  # the element around, the text
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in {tag}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def inside(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def report_of(folder: Path) -> str:
    write_report(RunFolder(folder))
    return (folder / "report.html").read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    return json.loads(page.split('id="report-data">')[1].split("</script>")[0])


def findings_of(
    given: list[int], suggested: list[int], flagged: int, classes: str | list[str]
) -> Findings:
    score = np.linspace(1, 0, len(given))
    numbers = np.arange(len(given)), np.array(given), np.array(suggested)
    return Findings(tuple(classes), *numbers, score, flagged, [])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    texts = [f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(300)]
    make_run(folder, HOSTILE, 300, texts, [{"text": text, "row": [[text, text]]} for text in texts])
    return report_of(folder)


class TestHostileTexts:
    def test_nothing_of_them_becomes_markup(self, hostile: str) -> None:
        page = Page(hostile)
        assert len(page.all("script")) == 2
        assert not page.all("img")
        assert not page.all("b") or "bold" not in page.inside("b")
        for tag, attributes in page.elements:
            assert not [name for name in attributes if name.startswith("on")], tag

    def test_they_are_all_there(self, hostile: str) -> None:
        page, data = Page(hostile), data_of(hostile)
        names = page.inside("bdi")
        assert set(HOSTILE) <= set(names)
        assert tuple(data["classes"]) == HOSTILE
        first = data["samples"][0]
        assert first["text"] == first["row"][0][0] == first["row"][0][1]
        assert any(first["text"].startswith(name) for name in HOSTILE)

    def test_the_embedded_data_cannot_end_its_element(self) -> None:
        text = str(embedded(["</script>", "<!--", "]]>", "&", "\u2028\u2029", "\ud800"]))
        assert not set(text) & set("<>&\u2028\u2029")
        assert text.isascii()
        assert json.loads(text) == ["</script>", "<!--", "]]>", "&", "\u2028\u2029", "\ud800"]

    def test_the_policy_allows_this_script_and_no_request(self, hostile: str) -> None:
        page = Page(hostile)
        policy = next(
            meta["content"] or "" for meta in page.all("meta")
            if meta.get("http-equiv") == "Content-Security-Policy"
        )  # fmt: skip
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["img-src"] == "data:"
        for rule, element in (("style-src", "style"), ("script-src", "script")):
            content = re.findall(rf"<{element}>(.*?)</{element}>", hostile, re.DOTALL)
            assert len(content) == 1
            digest = base64.b64encode(hashlib.sha256(content[0].encode()).digest()).decode()
            assert rules[rule] == f"'sha256-{digest}'"
        assert not [tag for tag, attributes in page.elements if "style" in attributes]

    def test_nothing_outside_is_asked_for(self, hostile: str) -> None:
        page = Page(hostile)
        for _, attributes in page.elements:
            for name in ("src", "href", "action", "srcset", "data", "poster", "xlink:href"):
                target = attributes.get(name)
                assert target is None or target.startswith(("#", "data:"))
        assert "http" not in hostile.replace("http-equiv", "")
        assert not re.search(r"url\(|@import|//\w+\.", hostile)


class TestPage:
    def test_is_sound(self, hostile: str) -> None:
        page = Page(hostile)  # asserts that every tag is closed in its turn
        assert hostile.startswith("<!doctype html>")
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        assert len(ids) == len(set(ids))
        for _, attributes in page.elements:
            for name in ("aria-labelledby", "for"):
                assert attributes.get(name) in {None, *ids}
            if (attributes.get("href") or "").startswith("#"):
                assert attributes["href"][1:] in ids
        assert all("scope" in attributes for attributes in page.all("th"))
        assert all("aria-label" in a or a.get("aria-hidden") for a in page.all("svg"))
        for landmark in ("header", "nav", "main", "footer"):
            assert page.all(landmark)
        assert len(page.all("h1")) == 1

    def test_an_old_run_folder_gives_one_without_pictures(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        config = json.loads((tmp_path / "config.json").read_text())
        del config["source"], config["data"]["label_column"]
        (tmp_path / "config.json").write_text(json.dumps(config))
        data = data_of(report_of(tmp_path))
        assert len(data["samples"]) > 20
        assert not any("picture" in sample for sample in data["samples"])

    def test_the_same_files_give_the_same_page(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        assert report_of(tmp_path) == report_of(tmp_path)

    @pytest.mark.parametrize(
        ("rate", "headline", "lead", "line"),
        [
            (0.2, "No label looks wrong",
             "Of 200 labels none is more probably wrong than right.", "none is flagged"),
            (13.2, "About 13\u00a0% of the labels look wrong, but none can be pointed at",
             "about 26 are wrong by the estimate, but nothing tells which.",
             "about 13 % of the 200 labels look wrong, but none can be pointed at"),
        ],
    )  # fmt: skip
    def test_no_label_is_flagged(
        self, rate: float, headline: str, lead: str, line: str, tmp_path: Path
    ) -> None:
        """The estimate may say that many are wrong all the same."""
        estimate = make_issues(200, 2).in_words("ab")
        estimate |= {"flagged": 0, "noise_rate": rate, "noise_interval": None}
        make_run(tmp_path, ["a", "b"], label_issues=estimate)
        page = report_of(tmp_path)
        assert Page(page).inside("h1") == [headline]
        assert lead in page
        assert "agrees with" not in page
        assert "<script" not in page
        assert noise_line(json.loads((tmp_path / "summary.json").read_text())).endswith(line)

    def test_one_label_is_flagged(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"], label_issues={**ESTIMATE, "flagged": 1})
        page = report_of(tmp_path)
        assert "1 is flagged: more probably" in page
        assert "The one flagged label." in page
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert noise_line(summary).endswith("; 1 is flagged")

    def test_the_estimate_is_used(self, tmp_path: Path) -> None:
        estimate = {
            "expected_errors": 81.4, "noise_rate": 38.2, "noise_interval": [36.1, 40.3],
            "transition": [[0.75, 0.25], [0.0, 1.0]], "flagged": 30,
        }  # fmt: skip
        make_run(tmp_path, ["cat", "dog"], label_issues=estimate)
        page = Page(report_of(tmp_path))
        assert page.inside("h1") == ["About 38\u00a0% ± 2\u00a0% of the labels look wrong"]
        assert [text for text in page.inside("td") if text in ("75", "25", "100")] == [
            "75", "25", "100"
        ]  # fmt: skip
        assert "81" in page.inside("dd")

    @pytest.mark.parametrize(
        "damage",
        ['{"index": "1"}', '{"index": 1, "picture": "https://example.org/x.png"}', "[]", "{", "7",
         '{"index": 1, "row": [["a", 3]]}', '{"index": 1, "text": 5}', '{"index": 1, "row": 5}'],
    )  # fmt: skip
    def test_a_damaged_gallery(self, damage: str, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        (tmp_path / GALLERY).write_text(damage + "\n")
        with pytest.raises(mlnt.InputError, match=r"gallery\.jsonl cannot be read"):
            write_report(RunFolder(tmp_path))

    def test_a_method_with_a_name_that_is_no_mathematics(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        text = (tmp_path / "metrics.jsonl").read_text()
        (tmp_path / "metrics.jsonl").write_text(text.replace('"mlnt"', '"$\\\\x$"'))
        write_report(RunFolder(tmp_path))
        (tmp_path / "metrics.jsonl").write_text(text.replace('"mlnt"', '"\\ud800"'))
        with pytest.raises(mlnt.InputError, match="damaged"):
            write_report(RunFolder(tmp_path))

    def test_a_chosen_model_that_is_not_there(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        text = (tmp_path / "summary.json").read_text()
        (tmp_path / "summary.json").write_text(text.replace('"models": [', '"models": [], "x": ['))
        with pytest.raises(mlnt.InputError, match="chosen model is not among"):
            write_report(RunFolder(tmp_path))

    @pytest.mark.parametrize("count", [2, 3, 5, 8])
    def test_very_few_labels(self, count: int, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"], count)
        Page(report_of(tmp_path))

    def test_no_metrics(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        (tmp_path / "metrics.jsonl").unlink()
        assert "polyline" not in report_of(tmp_path)

    def test_an_index_twice(self, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        file = tmp_path / "label_issues.csv"
        lines = file.read_text().splitlines()
        file.write_text("\n".join([*lines[:-1], lines[1]]) + "\n")
        with pytest.raises(mlnt.InputError, match="each index once"):
            write_report(RunFolder(tmp_path))

    @pytest.mark.parametrize(("count", "size"), [(90, 1), (900, 2)])
    def test_rows_without_a_label(self, count: int, size: int, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"], count)
        whole = data_of(report_of(tmp_path))
        leave_gaps(tmp_path)
        data = data_of(report_of(tmp_path))
        rows = np.frombuffer(base64.b64decode(data["rows"]["base64"]), f"<u{size}")
        assert rows.tolist() == [row for row in range(count * 10 // 9 - 1) if row % 10 != 9]
        assert (whole["rows"], data["labels"]) == (None, whole["labels"])
        moved = [{**s, "index": s["index"] + s["index"] // 9} for s in whole["samples"]]
        assert data["samples"] == moved

    @pytest.mark.parametrize("index", [-1, 2**32, 10**30])
    def test_an_index_of_no_row(self, index: int, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"])
        file = tmp_path / "label_issues.csv"
        lines = file.read_text().splitlines()
        last = f"{index},{lines[-1].split(',', 1)[1]}"
        file.write_text("\n".join([*lines[:-1], last]) + "\n")
        with pytest.raises(mlnt.InputError, match="each index once"):
            write_report(RunFolder(tmp_path))

    def test_a_hundred_thousand_labels(self) -> None:
        path = large_report()
        assert 8e6 < path.stat().st_size < 20e6
        data = data_of(path.read_text(encoding="utf-8"))
        assert len(data["samples"]) == 1000
        assert len(base64.b64decode(data["labels"]["base64"])) == data["total"] == 100_000

    def test_very_many_classes(self, tmp_path: Path) -> None:
        make_run(tmp_path, [f"class {i}" for i in range(1000)], 3000)
        page = report_of(tmp_path)
        assert len(page) < 1e6
        assert data_of(page)["labels"]["size"] == 2
        assert "The 20 classes most involved, of 1000." in page


class TestDownload:
    """What page.js writes, line by line, is read back by training."""

    def write(self, folder: Path, names: list[str], classes: tuple, column: str | None) -> str:
        cells, _ = label_cells(classes)
        lines = [f"{i},{cells[classes.index(name)]}" for i, name in enumerate(names)]
        text = "\n".join([label_header(column), *lines])
        (folder / "corrected.csv").write_text(f"\ufeff{text}\n", encoding="utf-8", newline="")
        return str(folder / "corrected.csv")

    @pytest.mark.parametrize(
        "classes",
        [("cat", "dog"), ("0", "1", "2"), HOSTILE, ("=x", "+y", "7"), (" a", "b"), ('"', "a,b"),
         ("=x", "0"), ("-1", "1"), ("1", "2", "10")],
    )  # fmt: skip
    def test_any_names(self, classes: tuple[str, ...], tmp_path: Path) -> None:
        given = [classes[i % len(classes)] for i in range(40)]
        own = mlnt.open_dataset((np.zeros((40, 2)), given))
        corrected = given[::-1]
        path = self.write(tmp_path, corrected, own.classes, None)
        data = mlnt.open_dataset((np.zeros((40, 2)), given), labels=path)
        assert [data.classes[i] for i in data.train.labels.tolist()] == corrected

    @pytest.mark.parametrize("column", ["kind", "index", 'odd, "name"'])
    def test_the_column_that_the_user_named(self, column: str, tmp_path: Path) -> None:
        classes, given = ("cat", "dog"), ["cat", "dog"] * 20
        head = label_header(column).split(",", 1)[1]
        rows = [f"1.5,2,{name}" for name in given]
        (tmp_path / "data.csv").write_text("\n".join([f"a,b,{head}", *rows]) + "\n")
        path = self.write(tmp_path, given[::-1], classes, column)
        data = mlnt.open_dataset(tmp_path / "data.csv", labels=path, label_column=column)
        assert [data.classes[i] for i in data.train.labels.tolist()] == given[::-1]

    def test_no_cell_is_a_formula(self) -> None:
        for classes in (HOSTILE, ("=x", "+y", "7"), ("@a", "b")):
            cells, remark = label_cells(classes)
            assert all(harmless(cell) == cell for cell in cells)
            assert "numbers of the classes" in remark
        assert "Do not open" in label_cells(("=x", "0"))[1], "numbers would be taken for names"

    def test_no_two_names_become_one(self) -> None:
        names = ["=a", "'=a", "''=a", "a", "'a", "-1", "'-1", "-x", "'-x"]
        assert len({harmless(name) for name in names}) == len(names)

    def test_packed(self) -> None:
        assert packed(np.array([1, 255]), 256) == {"size": 1, "base64": "Af8="}
        assert packed(np.array([1, 256]), 257) == {"size": 2, "base64": "AQAAAQ=="}
        assert packed(np.array([65536]), 70_000) == {"size": 4, "base64": "AAABAA=="}

    def test_file_name(self) -> None:
        assert file_name("digits") == "digits-corrected.csv"
        assert file_name("../../etc/passwd\n; rm") == "etc-passwd-rm-corrected.csv"
        assert file_name("שלום") == "data-corrected.csv"

    def test_next_training(self) -> None:
        source = {"data": "my data.csv", "test_data": "t.csv", "labels": "old.csv"}
        assert next_training(source, "c.csv") == (
            "mlnt train 'my data.csv' --test-data t.csv --labels c.csv"
        )
        assert next_training({"data": None}, "c.csv") == "mlnt.train(data, labels='c.csv')"


class TestFindings:
    def test_by_hand(self) -> None:
        # Flagged are the first four: 0 taken for 1 twice and for 2 once, 1 taken for 0 once.
        found = findings_of([0, 0, 0, 1, 1, 2], [1, 1, 2, 0, 1, 2], 4, "abc")
        assert found.confusions()[0] == Confusion(0, 1, 2)
        a, b, c = found.by_class()
        assert (a.labels, a.flagged, a.share) == (3, 3, 100.0)
        assert a.suggestion == Confusion(0, 1, 2)
        assert (b.labels, b.flagged, b.suggestion) == (2, 1, Confusion(1, 0, 1))
        assert (c.labels, c.flagged, c.suggestion) == (1, 0, None)
        assert found.joint_counts(np.arange(3)).tolist() == [[0, 1, 0], [2, 1, 0], [1, 0, 1]]
        assert found.joint_counts(np.array([0, 2])).tolist() == [[0, 0], [1, 1]]
        assert found.involved().tolist() == [4, 3, 1]
        assert found.histogram(2).tolist() == [3, 3]
        # Scores 1, 0.8, 0.6, 0.4, ...: a half does not part four from the rest.
        assert found.threshold == pytest.approx(0.3)
        assert findings_of([0, 0, 0, 1, 1, 2], [1, 1, 2, 0, 1, 2], 3, "abc").threshold == 0.5

    def test_file_and_labels_in_order(self, tmp_path: Path) -> None:
        issues = make_run(tmp_path, ["=a", "'=a", "b"], 50)
        found = read_findings(tmp_path / "label_issues.csv", ["=a", "'=a", "b"], 10)
        in_order = torch.empty(50, dtype=torch.long)
        in_order[issues.positions] = issues.given
        rows, labels = found.labels_in_order()
        assert (rows.tolist(), labels.tolist()) == ([*range(50)], in_order.tolist())
        assert [suspect.index for suspect in found.suspects] == issues.positions[:10].tolist()

    @pytest.mark.parametrize(
        ("cells", "classes", "stand_out"),
        [
            ({(0, 1): 30, (1, 0): 10, (2, 3): 5, (3, 2): 5}, 4, 2),
            ({(0, 1): 32, (1, 2): 26, (2, 0): 24}, 3, 3),  # all errors in three of six directions
            ({(a, b): 5 for a in range(4) for b in range(4) if a != b}, 4, 0),
            ({(0, 1): 1, (1, 0): 1}, 2, 0),
            ({(0, 1): 40, (1, 0): 8}, 2, 1),
            ({(a, (a + 1) % 50): 28 for a in range(50)}, 50, 50),  # a fiftieth of all, each
            # Thirty times what is usual, and nothing among so many.
            ({(a, b): 1 for a in range(40) for b in range(40) if a != b} | {(0, 1): 15}, 40, 0),
        ],
    )
    def test_confused_most(
        self, cells: dict[tuple[int, int], int], classes: int, stand_out: int
    ) -> None:
        pairs = [pair for pair, count in cells.items() for _ in range(count)]
        given, suggested = ([pair[side] for pair in pairs] for side in (0, 1))
        names = [str(number) for number in range(classes)]
        findings = findings_of(given, suggested, len(pairs), names)
        found = words.confused_most(findings)
        assert found == findings.confusions()[:stand_out]

    def test_main_confusions_are_said(self, tmp_path: Path) -> None:
        make_run(tmp_path, "abc", 90)
        rows = [f"{i},,{'abc'[i % 3]},{'bca'[i % 3]},0.1,0.9,0.9,\n" for i in range(90)]
        header = (tmp_path / "label_issues.csv").read_text().splitlines()[0]
        (tmp_path / "label_issues.csv").write_text(header + "\n" + "".join(rows))
        summary = json.loads((tmp_path / "summary.json").read_text())
        summary["label_issues"]["flagged"] = 90
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        page = re.sub("<[^>]*>", "", report_of(tmp_path))
        said = "Most often a looks like b (30 times), b like c (30 times) and c like a (30 times)."
        assert said in page

    def test_matrix(self) -> None:
        # The model says a for four, of which three were labelled a; b for two, one each.
        found = findings_of([0, 0, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1], 2, "ab")
        matrix = make_matrix(found, None)
        assert [[cell.text for cell in row] for _, row in matrix.rows] == [
            ["75", "25"],
            ["50", "50"],
        ]
        assert not matrix.is_estimate
        assert [Cell(share, False).level for share in (0, 0.04, 0.1, 1, 25, 100)] == [
            0,
            0,
            1,
            1,
            5,
            9,
        ]
        with pytest.raises(ValueError, match="must be 2 × 2"):
            make_matrix(found, [[1.0]])


class TestWords:
    @pytest.mark.parametrize(
        ("rate", "interval", "text"),
        [(38.2, [36.1, 40.3], " ± 2 %"), (38.2, [38.0, 38.4], " ± 0.2 %"), (38.2, None, ""),
         (3.4, [1.0, 8.0], " (1.0 % to 8.0 %)"), (3.4, [2.9, 3.9], " ± 0.5 %"),
         (23.0, [0.0, 58.5], " (0 % to 58 %)")],
    )  # fmt: skip
    def test_spread(self, rate: float, interval: list[float] | None, text: str) -> None:
        assert words.spread(rate, interval) == text

    @pytest.mark.parametrize(
        ("agreement", "rate", "interval", "count", "is_said"),
        [
            (33.0, 57.0, [50.0, 64.0], 400, True),  # CIFAR-10N by a weak network, 42 % wrong
            (45.5, 23.0, [0.0, 58.0], 11, False),  # of eleven labels by chance
            (59.7, 38.7, [34.5, 39.8], 4999, False),  # CIFAR-10N by a good one
            (95.0, 0.5, [0.2, 4.3], 5000, False),  # CIFAR-10 as it comes
            (33.0, 65.0, [63.0, 67.0], 5000, False),  # most labels are wrong, and it sees that
            (70.0, 5.0, [1.0, 31.0], 200, False),  # hard, and the interval says so
            (68.0, 4.0, [1.2, 14.0], 340, True),
            (33.0, 57.0, None, 400, False),
            (None, 57.0, [50.0, 64.0], 400, False),
        ],
    )
    def test_a_weak_network_is_doubted(
        self,
        agreement: float | None,
        rate: float,
        interval: list[float] | None,
        count: int,
        is_said: bool,
        tmp_path: Path,
    ) -> None:
        make_run(tmp_path, "ab")
        summary, config = (
            json.loads((tmp_path / name).read_text()) for name in ("summary.json", "config.json")
        )
        summary["models"][1]["validation"] = agreement
        summary["label_issues"] |= {"noise_rate": rate, "noise_interval": interval}
        config["data"]["samples"] = {"train": 10 * count, "validation": count}
        summary["labels"] = 11 * count
        (tmp_path / "summary.json").write_text(json.dumps(summary))
        (tmp_path / "config.json").write_text(json.dumps(config))
        said = "the model agrees with only"
        assert (said in report_of(tmp_path)) == is_said
        assert any(said in line for line in doubts(summary, config)) == is_said
        assert "pretrained" not in words.doubt(summary, config), "this is a table"
        config["data"]["encoder"]["kind"] = "image"
        assert ("pretrained" in words.doubt(summary, config)) == is_said
        # Of validation data of its own too, where it finds most of what it disagrees with itself.
        summary["is_held_out"] = False
        apart = f"{count:,} validation labels" in words.doubt(summary, config)
        assert apart == is_said
        assert ("pretrained" in words.doubt(summary, config)) == (is_said and rate > 50)

    def test_better_validation_labels_that_contradict_the_estimate(self) -> None:
        """Of its own data, as the recorded runs of the Hausa news; no other of them is doubted."""
        folders = sorted(path.parent for path in RESULTS.rglob("summary.json"))
        said = {}
        for folder in folders:
            summary, config = (
                json.loads((folder / name).read_text()) for name in ("summary.json", "config.json")
            )
            said[folder] = words.doubt(summary, config)
        doubted = [folder for folder in folders if said[folder]]
        assert doubted == [folder for folder in folders if "train_clean_noisy" in str(folder)]
        assert len(doubted) == 5
        assert said[doubted[0]] == (
            "the model agrees with only 51 % of the 290 validation labels, where at "
            "most 5.6 % wrong ones would leave 94 % right: these are other data, or many training "
            "labels are wrong in a way that the model has learnt, which no estimate from them "
            "can see"
        )

    @pytest.mark.parametrize(("epochs", "together"), [(1, 1), (2, 2), (3, 3), (20, 3)])
    def test_epochs_together(self, epochs: int, together: int) -> None:
        rows = [{"iteration": i, "best_epoch": epochs} for i in (0, 1, 2)]
        summary = {"filters": [{"after_iteration": 1}], "models": rows}
        assert words.epochs_together(summary) == together
        assert words.epochs_together({**summary, "filters": []}) == 0

    def test_long_names_are_cut_in_the_middle(self, tmp_path: Path) -> None:
        assert short_name("class number 3") == "class number 3"
        assert short_name("class number 17") == "class n…ber 17"
        make_run(tmp_path, ["class number 17", "class number 18"])
        assert report_of(tmp_path).count(">class n…ber 18</bdi></th>") == 2

    def test_small_ones(self) -> None:
        assert [words.percent(v) for v in (0, 3.84, 9.96, 38.2)] == ["0 %", "3.8 %", "10 %", "38 %"]
        assert [words.duration(v) for v in (0.42, 21.4, 250, 7500)] == [
            "0.4 s", "21 s", "4 min 10 s", "2 h 5 min"
        ]  # fmt: skip
        assert [words.times(v) for v in (1, 2, 1234)] == ["once", "twice", "1,234 times"]

    def test_keys(self) -> None:
        assert class_keys("0123456789") == {str(i): i for i in range(10)}
        assert class_keys(["3", "8"]) == {"3": 0, "8": 1}, "the key is the name"
        assert class_keys(["cat", "dog"]) == {"1": 0, "2": 1}
        assert list(class_keys([f"c{i}" for i in range(12)])) == list("1234567890")


def test_accuracy_by_class() -> None:
    probabilities = torch.eye(3)[[0, 0, 1, 1]]
    assert accuracy_by_class(probabilities, torch.tensor([0, 0, 1, 0])) == [
        pytest.approx(200 / 3), 100.0, None
    ]  # fmt: skip


class TestCharts:
    def test_steps_enclose(self) -> None:
        assert charts.nice_steps(0, 100, 5) == [0, 20, 40, 60, 80, 100]
        assert charts.nice_steps(62, 97.8, 5) == [60, 70, 80, 90, 100]
        assert len(set(charts.nice_steps(5, 5, 5))) >= 2

    @given(
        st.lists(
            st.tuples(st.none() | st.floats(0, 100), st.none() | st.floats(0, 100)), min_size=1
        ),
        st.integers(0, 2),
    )
    def test_any_accuracies(self, values: list, iteration: int) -> None:
        rows = [
            {"method": "mlnt", "iteration": iteration, "epoch": epoch,
             "student": {"validation": student, "test": teacher}, "teacher": {"test": teacher}}
            for epoch, (student, teacher) in enumerate(values, start=1)
        ]  # fmt: skip
        for drawing in charts.drawings(charts.curves(rows)):
            for _, points in drawing.lines:
                for point in points.split():
                    x, y = map(float, point.split(","))
                    assert charts.LEFT <= x <= charts.WIDTH - charts.RIGHT
                    assert charts.TOP - 0.1 <= y <= charts.HEIGHT - charts.BOTTOM + 0.1

    def test_lines_lie_inside(self) -> None:
        rows = [
            {
                "method": "cross_entropy",
                "iteration": 0,
                "epoch": epoch,
                "student": {"test": 50 + epoch},
            }
            for epoch in (1, 2, 3)
        ]
        (drawing,) = charts.drawings(charts.curves(rows))
        (_, points), = drawing.lines  # fmt: skip
        for point in points.split():
            x, y = map(float, point.split(","))
            assert charts.LEFT <= x <= charts.WIDTH - charts.RIGHT
            assert charts.TOP <= y <= charts.HEIGHT - charts.BOTTOM
        assert charts.drawings(charts.curves([])) == []

    def test_heights_go_by_the_square_root(self) -> None:
        drawn = charts.histogram(np.array([400, 100, 0, 0]), 0.5)
        first, second, third, _ = drawn.bars
        assert first.height == pytest.approx(2 * second.height)
        assert third.height == 0
        assert [bar.flagged for bar in drawn.bars] == [False, False, True, True]


class TestGallery:
    def entries(self, dataset: mlnt.Dataset, positions: Any) -> list[dict[str, Any]]:
        return list(describe(dataset, torch.as_tensor(positions)))

    def picture(self, entry: dict[str, Any]) -> np.ndarray:
        content = base64.b64decode(entry["picture"].split(",")[1])
        return np.asarray(Image.open(io.BytesIO(content)))

    def test_digits_come_back_as_they_were(self) -> None:
        whole = mlnt.open_dataset("digits")
        raw = whole.train.inputs * whole.encoder.std[0] + whole.encoder.mean[0]
        dataset = hold_out(whole, 0.2, torch.Generator().manual_seed(0))
        positions = [0, 1, 2, 50, 51, 700, len(whole.train) - 1]
        assert {int(i in dataset.held_out_indices) for i in positions} == {0, 1}, "of both parts"
        for entry in self.entries(dataset, positions):
            wanted = raw[entry["index"]][0].numpy().round() * 255 / 16
            # A half may go up or down.
            np.testing.assert_allclose(self.picture(entry), wanted, rtol=0, atol=0.51)

    def test_colours_and_sizes(self) -> None:
        images = np.random.default_rng(0).random((20, 40, 200, 3))
        images[..., 0] = 1.0
        (entry,) = self.entries(mlnt.open_dataset((images, np.arange(20) % 2)), [3])
        assert entry["picture"].startswith("data:image/jpeg")
        found = self.picture(entry)
        assert found.shape == (26, 128, 3)
        assert found[..., 0].mean() > 240

    @pytest.mark.parametrize("shape", [(9, 9), (9, 9, 3), (2, 9, 9)])
    def test_a_sheet_shows_the_same(self, shape: tuple[int, ...]) -> None:
        """However dark those are that are on it."""
        images = np.random.default_rng(0).integers(0, 256, (20, *shape), np.uint8)
        images[:3] //= 4
        dataset = mlnt.open_dataset((images, np.arange(20) % 2))
        for entry, picture in zip(
            self.entries(dataset, range(3)), to_pictures(dataset, range(3)), strict=True
        ):
            assert np.array_equal(self.picture(entry), picture)
            seen = images[entry["index"]]
            assert np.array_equal(picture, seen[0] if shape[0] == 2 else seen)

    def test_rows(self) -> None:
        rows = np.round(
            np.random.default_rng(0).normal(size=(30, 20)) * 10.0 ** np.arange(-8, 12), 9
        )
        (entry,) = self.entries(mlnt.open_dataset((rows, np.arange(30) % 2)), [7])
        assert entry["more"] == 4
        assert [float(value) for _, value in entry["row"]] == pytest.approx(
            rows[7, :16].tolist(), rel=1e-5, abs=1e-9
        )

    @pytest.mark.parametrize(
        ("value", "mean", "std", "text"),
        [(-1.0, 5.0, 2.0, "3"), (0.1, 5.0, 1.0, "5.1"), (0.0, 1609459200.0, 1e6, "1609459200"),
         (1.00000007, 0.0, 0.25, "0.25"), (1.5, 0.0, 1e-9, "1.5e-09")],
    )  # fmt: skip
    def test_numbers(self, value: float, mean: float, std: float, text: str) -> None:
        assert decoded_number(value, mean, std) == text

    def test_a_column_that_is_bent(self) -> None:
        values = np.array([[5.1], [4.9], [6.3], [0.1], [-2.5], [1e6]])
        encoder = TableEncoder.fit(values, ["sepal"])
        assert encoder.bent
        found = [gallery.table_cells(encoder, row)[0][1] for row in encoder.encode(values)]
        assert found == ["5.1", "4.9", "6.3", "0.1", "-2.5", "1000000"]

    def test_a_column_in_its_encoding(self) -> None:
        values = np.array([[5.1], [4.9], [6.3], [0.1]])
        encoder = TableEncoder.fit(values, ["sepal"])
        cells = [gallery.table_cells(encoder, row) for row in encoder.encode(values)]
        assert cells == [
            [["sepal", "5.1"]],
            [["sepal", "4.9"]],
            [["sepal", "6.3"]],
            [["sepal", "0.1"]],
        ]

    def test_columns_come_back_as_they_were_written(self) -> None:
        texts = [f"{value:.4f}" for value in np.random.default_rng(0).normal(0.3, 0.9, 500)]
        values = np.array(texts, np.float64)[:, None]
        encoder = TableEncoder.fit(values, ["x"])
        found = [gallery.table_cells(encoder, row)[0][1] for row in encoder.encode(values)]
        assert [float(text) for text in found] == [float(text) for text in texts]

    def test_texts_are_cut(self) -> None:
        texts = ["word " * 500, "short"] * 10
        long, short = self.entries(mlnt.open_dataset((texts, list("ab") * 10)), [0, 1])
        assert len(long["text"]) == gallery.MOST_CHARACTERS
        assert short == {"index": 1, "text": "short"}

    def test_pictures_on_disk(self, tmp_path: Path) -> None:
        for number in range(12):
            name = tmp_path / "data" / ("red" if number % 2 else "blue") / f"{number}.png"
            name.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (300, 200), "red" if number % 2 else "blue").save(name)
        dataset = mlnt.open_dataset(tmp_path / "data")
        (tmp_path / "data" / "blue" / "2.png").write_bytes(b"broken")
        entries = self.entries(dataset, range(12))
        broken = [entry for entry in entries if "picture" not in entry]
        assert [entry["text"] for entry in broken] == ["blue/2.png"]
        assert not dataset.train.inputs.faults.found, "a run that is done must not fail any more"
        for entry in entries:
            if "picture" in entry:
                colour = self.picture(entry)[64, 64]
                assert colour[0 if entry["text"].startswith("red") else 2] > 240
                assert len(entry["picture"]) < 3000

    def test_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        dataset = mlnt.open_dataset("digits")
        monkeypatch.setattr(gallery, "MOST_BYTES", 2000)
        write_gallery(tmp_path / GALLERY, dataset, torch.arange(1000))
        assert (tmp_path / GALLERY).stat().st_size <= 2000
        found = read_gallery(tmp_path / GALLERY)
        assert list(found) == list(range(len(found)))
        assert len(found) > 4
        assert read_gallery(tmp_path / "none") == {}
