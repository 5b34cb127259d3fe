"""The report as a person uses it: by keyboard and mouse, on a phone, in the dark."""

import itertools
import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlnt
from chromium import CHROMIUM, Chromium
from mlnt import cli
from mlnt.data.label_files import read_label_file
from mlnt.label_issues import LabelIssues, harmless
from mlnt.report import write_report
from mlnt.runs import RunFolder
from report_runs import HOSTILE, large_report, leave_gaps, make_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

# Every text that is shown, with the contrast between it and what lies behind it (WCAG 2.2).
CONTRASTS = """(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], [R, G, B]) =>
    [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = parse(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("script, option, :disabled")) continue;
    if (!element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    const colour = over(parse(element.closest("svg") ? style.fill : style.color), ground);
    const [a, b] = [light(colour), light(ground)].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    chromium = Chromium(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()


@pytest.fixture(autouse=True)
def _forget(browser: Chromium) -> None:
    """Each test begins with a browser that has kept nothing."""
    browser.call("Page.navigate", url="about:blank")
    browser.call("Storage.clearDataForOrigin", origin="file://", storageTypes="local_storage")
    browser.events.clear()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a real run, short as it was."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    arguments = ["--noise", "symmetric:0.4", "--epochs", "2", "--iterations", "1", "--sets", "1"]
    assert cli.run(["train", "digits", *arguments, "--out", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LabelIssues]:
    folder = tmp_path_factory.mktemp("hostile") / "run"
    texts = [f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(300)]
    issues = make_run(folder, HOSTILE, 300, texts, [{"text": text} for text in texts])
    write_report(RunFolder(folder))
    return folder / "report.html", issues


def data_of(report: Path) -> dict[str, Any]:
    text = report.read_text(encoding="utf-8")
    return json.loads(text.split('id="report-data">')[1].split("</script>")[0])


def shown(browser: Chromium, selector: str) -> list[str]:
    return browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )


def choose(browser: Chromium, select: str, value: str) -> None:
    browser.run(
        f"{{const s = document.getElementById({select!r}); s.value = {value!r};"
        "s.dispatchEvent(new Event('input')); null}"
    )


def complaints(browser: Chromium) -> list[dict[str, Any]]:
    """Errors, dialogs, and requests that leave the page."""
    bad = {"Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"}
    found = [event for event in browser.events if event["method"] in bad]
    for event in browser.events:
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("file:", "data:", "about:", "blob:")):
                found.append(event)
    return found


def reviewed(browser: Chromium) -> str:
    return browser.run("document.getElementById('progress-text').textContent")


class TestReview:
    def test_ten_labels_by_keyboard_and_the_next_training(
        self, browser: Chromium, digits: Path, tmp_path: Path
    ) -> None:
        browser.open(digits)
        data = data_of(digits)
        samples = data["samples"]
        assert len(shown(browser, ".card")) == 24
        assert browser.run("document.querySelector('.card img').complete")
        browser.press("a")
        assert reviewed(browser).startswith("0 of"), "outside the samples nothing is decided unseen"
        # Ten of them: accepted, kept, another class (the key is its name), and one undone.
        browser.press("a", "a", "r", "3", "a", "r", "7", "a", "j", "k", "a", "a", "r", "u", "a")
        expected = {}
        for place, key in enumerate(("a", "a", "r", "3", "a", "r", "7", "a", "a", "a", "a")):
            own = {"a": samples[place]["suggested"], "r": samples[place]["given"]}
            expected[samples[place]["index"]] = own[key] if key in own else int(key)
        kept = sum(expected[s["index"]] == s["given"] for s in samples if s["index"] in expected)
        said = f"11 of {len(samples)} reviewed: {11 - kept} changed, {kept} kept"
        assert reviewed(browser) == said
        assert said in browser.run("document.getElementById('said').textContent")

        browser.click("#download")
        path = browser.downloaded()
        assert path.name == "digits-corrected.csv"
        labels = read_label_file(path).in_order()
        given = np.frombuffer(b64decode(data["labels"]["base64"]), np.uint8)
        wanted = [str(expected.get(i, int(label))) for i, label in enumerate(given)]
        assert labels == wanted
        dataset = mlnt.open_dataset("digits", labels=path)
        assert dataset.train.labels.tolist() == [int(label) for label in wanted]
        arguments = ["--epochs", "1", "--iterations", "1", "--sets", "1", "--labels", str(path)]
        assert cli.run(["train", "digits", *arguments, "--out", str(tmp_path / "next")]) == 0
        assert not complaints(browser)

    def test_progress_is_kept(self, browser: Chromium, digits: Path) -> None:
        browser.open(digits)
        browser.press("j", "a", "r", "a")
        before = reviewed(browser)
        assert before.startswith("3 of")
        browser.open(digits)
        assert reviewed(browser) == before
        verdicts = shown(browser, ".card .verdict")
        assert verdicts[0].startswith("now ")
        assert verdicts[1].startswith("kept ")
        assert verdicts[3] == ""

    def test_a_browser_that_keeps_nothing(self, browser: Chromium, digits: Path) -> None:
        refuse = (
            "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }});"
        )
        script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=refuse)["identifier"]
        try:
            browser.open(digits)
            browser.press("j", "a")
            assert reviewed(browser).startswith("1 of")
            assert "keeps no progress" in shown(browser, "#problem:not([hidden])")[0]
            assert not complaints(browser)
        finally:
            browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    def test_by_mouse(self, browser: Chromium, digits: Path) -> None:
        browser.open(digits)
        browser.click(".card:nth-child(2) .accept")
        browser.click(".card:nth-child(3) .reject")
        assert reviewed(browser).endswith("1 changed, 1 kept")
        browser.click(".card:nth-child(2) .accept")
        assert reviewed(browser).endswith("0 changed, 1 kept"), "once more takes it back"
        browser.run(
            "{const s = document.querySelector('.card:nth-child(4) .choose'); s.value = "
            "[...s.options].at(-1).value; s.dispatchEvent(new Event('change')); null}"
        )
        assert shown(browser, ".card .verdict")[3] in ("now 9", "kept 9")
        browser.click("#undo")
        browser.click("#undo")
        assert reviewed(browser).endswith("1 changed, 1 kept")

    def test_a_class_among_very_many(self, browser: Chromium, tmp_path: Path) -> None:
        make_run(tmp_path, [f"class {i}" for i in range(40)], 300)
        write_report(RunFolder(tmp_path))
        pick = (
            "(() => {const s = document.querySelector('.choose'); s.focus(); s.value = '39';"
            "s.dispatchEvent(new Event('change')); return s.length})()"
        )
        for _ in range(2):  # the second time the class is chosen already
            browser.open(tmp_path / "report.html")
            assert browser.run("document.querySelector('.choose').value") in ("", "39")
            assert browser.run(pick) == 41
            assert shown(browser, ".card .verdict")[0] in ("now class 39", "kept class 39")
            assert reviewed(browser).startswith("1 of")

    def test_moving_over_pages(self, browser: Chromium, digits: Path) -> None:
        browser.open(digits)
        place = "document.activeElement.dataset.index"
        order = [str(sample["index"]) for sample in data_of(digits)["samples"]]
        browser.press("j", "ArrowDown")
        columns = order.index(browser.run(place))
        assert columns > 2
        browser.press("ArrowUp", "ArrowRight", "ArrowRight", "ArrowLeft")
        assert browser.run(place) == order[1]
        browser.press(*"j" * 23)
        assert browser.run(place) == order[24]
        assert shown(browser, "#page-text")[0].startswith("2 of")
        browser.press("k")
        assert browser.run(place) == order[23]
        browser.click("#shortcuts")
        browser.press("j", "a")
        assert reviewed(browser).startswith("0 of"), "keys can be switched off"

    def test_filters_and_order(self, browser: Chromium, digits: Path) -> None:
        browser.open(digits)
        samples = data_of(digits)["samples"]
        first = samples[0]
        browser.press("j", "a")
        choose(browser, "by-given", str(first["given"]))
        assert set(shown(browser, ".card .given")) == {str(first["given"])}
        choose(browser, "by-suggested", str(first["suggested"]))
        pairs = [(s["given"], s["suggested"]) for s in samples]
        count = pairs.count((first["given"], first["suggested"]))
        assert len(shown(browser, ".card")) == min(24, count)
        choose(browser, "by-state", "done")
        assert shown(browser, ".card .index") == [f"sample {first['index']}"]
        choose(browser, "by-state", "kept")
        assert shown(browser, "#nothing:not([hidden])") == ["No sample fits these filters."]
        for name in ("by-given", "by-suggested", "by-state"):
            choose(browser, name, "")
        choose(browser, "sort", "index")
        numbers = [int(text.split()[1]) for text in shown(browser, ".card .index")]
        assert numbers == sorted(s["index"] for s in samples)[:24]
        browser.click("#by-text")
        browser.press(*str(first["index"]), "a")
        assert reviewed(browser).startswith("1 of"), "in the search keys are letters"
        assert browser.run("document.getElementById('by-text').value") == f"{first['index']}a"
        choose(browser, "by-text", str(first["index"]))
        assert f"sample {first['index']}" in shown(browser, ".card .index")


class TestHostileNames:
    def test_are_shown_as_they_are(
        self, browser: Chromium, hostile: tuple[Path, LabelIssues]
    ) -> None:
        report, _ = hostile
        browser.open(report)
        samples = data_of(report)["samples"]
        assert shown(browser, ".card .given") == [HOSTILE[s["given"]] for s in samples[:24]]
        assert shown(browser, ".card .suggested") == [HOSTILE[s["suggested"]] for s in samples[:24]]
        assert shown(browser, ".card .look .text") == [s["text"] for s in samples[:24]]
        assert set(HOSTILE) <= set(shown(browser, "#where th[scope=row] bdi"))
        browser.press("j", "a", "1", "2", "0", "u")
        assert browser.run("document.querySelectorAll('script, img, main b').length") == 2
        assert not complaints(browser)

    def test_rows_without_a_label_are_left_out(self, browser: Chromium, tmp_path: Path) -> None:
        make_run(tmp_path, ["a", "b"], 900)
        leave_gaps(tmp_path)
        write_report(RunFolder(tmp_path))
        browser.open(tmp_path / "report.html")
        data = data_of(tmp_path / "report.html")
        labels = np.frombuffer(b64decode(data["labels"]["base64"]), np.uint8)
        rows = [row for row in range(999) if row % 10 != 9]
        expected = dict(zip(rows, labels.tolist(), strict=True))
        browser.press("j", "a", "a")
        expected |= {sample["index"]: sample["suggested"] for sample in data["samples"][:2]}
        browser.click("#download")
        found = read_label_file(browser.downloaded())
        assert found.numbers == rows
        assert found.names == ["ab"[label] for label in expected.values()]
        assert not complaints(browser)

    def test_the_corrected_labels_are_read_back(
        self, browser: Chromium, hostile: tuple[Path, LabelIssues]
    ) -> None:
        _, issues = hostile
        given = [""] * 300
        for position, label in zip(issues.positions.tolist(), issues.given.tolist(), strict=True):
            given[position] = HOSTILE[label]
        # As a real run has them: the classes in the order that reading the data gives.
        source = (np.zeros((300, 2)), given)
        classes = mlnt.open_dataset(source).classes
        folder = hostile[0].parent.parent / "sorted"
        make_run(folder, classes, 300)
        write_report(RunFolder(folder))
        browser.open(folder / "report.html")
        data = data_of(folder / "report.html")
        browser.press("j", "a", "a", "a")
        browser.click("#download")
        path = browser.downloaded()
        cells = path.read_text(encoding="utf-8-sig").replace("\n", ",").split(",")
        assert all(harmless(cell) == cell for cell in cells)
        found = mlnt.open_dataset(source, labels=path)
        for sample in data["samples"][:3]:
            assert int(found.train.labels[sample["index"]]) == sample["suggested"]
        raw = np.frombuffer(b64decode(data["labels"]["base64"]), np.uint8)
        changed = (found.train.labels.numpy() != raw).nonzero()[0].tolist()
        assert changed == sorted(sample["index"] for sample in data["samples"][:3])


class TestForEveryone:
    @pytest.mark.parametrize("width", [360, 390, 768, 1400])
    def test_no_sideways_scrolling(
        self, width: int, browser: Chromium, hostile: tuple[Path, LabelIssues], digits: Path
    ) -> None:
        for report in (hostile[0], digits):
            browser.open(report, width=width)
            browser.run("{document.querySelector('details').open = true; null}")
            assert browser.run("document.documentElement.scrollWidth") <= width

    @pytest.mark.parametrize("dark", [False, True])
    def test_contrast(self, dark: bool, browser: Chromium, digits: Path) -> None:
        browser.open(digits, dark=dark)
        browser.press("j", "a", "r", "a")
        browser.run("{document.querySelector('details').open = true; null}")
        found = browser.run(CONTRASTS)
        assert len(found) > 300
        low = sorted((round(contrast, 2), text) for contrast, text in found if contrast < 4.5)
        assert not low, low[:10]
        ground = browser.run("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(20, 23, 26)") == dark

    def test_names_for_a_screen_reader(self, browser: Chromium, digits: Path) -> None:
        browser.open(digits)
        nodes = [
            node for node in browser.call("Accessibility.getFullAXTree")["nodes"]
            if not node.get("ignored")
        ]  # fmt: skip
        roles = [node["role"]["value"] for node in nodes]
        for role in (
            "banner",
            "main",
            "navigation",
            "search",
            "contentinfo",
            "status",
            "progressbar",
        ):
            assert role in roles, role
        for node in nodes:
            role = node["role"]["value"]
            if role in ("button", "combobox", "searchbox", "image", "checkbox", "progressbar"):
                assert node["name"]["value"].strip(), (role, node)
        headings = [
            int(next(p["value"]["value"] for p in node["properties"] if p["name"] == "level"))
            for node in nodes if node["role"]["value"] == "heading"
        ]  # fmt: skip
        assert headings[0] == 1
        steps = itertools.pairwise(headings)
        assert all(after - before <= 1 for before, after in steps), "no level is left out"


def test_a_hundred_thousand_labels_open_at_once(browser: Chromium) -> None:
    times = []
    for _ in range(2):  # the better of two: others may compute on the same cores
        browser.open(large_report())
        assert len(shown(browser, ".card")) == 24
        times.append(browser.run("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert min(times) < 2000
    browser.press("j", "a")
    browser.click("#download")
    assert len(read_label_file(browser.downloaded()).in_order()) == 100_000
