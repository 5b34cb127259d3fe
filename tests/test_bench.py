"""The bench: its yardstick computes what we compute, and its figures are all there."""

import copy
import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mlnt import bench, cli, origin
from mlnt.bench import rows as bench_rows
from mlnt.bench.authors import AuthorsWay
from mlnt.bench.floor import KernelTime, convolution_floor, floor_of_cross_entropy, floor_of_mlnt
from mlnt.bench.plot import draw_bench
from mlnt.bench.profile import kind_of
from mlnt.bench.rows import Row
from mlnt.bench.steps import faster_engine, ratios
from mlnt.config import Settings, make_settings
from mlnt.data.batches import Batch
from mlnt.meta.labels import synthetic_labels
from mlnt.methods import MLNT, Rates
from mlnt.networks import SmallConv
from mlnt.origin import commit
from mlnt.steps import EAGER_STEPS

TINY = ("--steps", "1", "--sets", "2", "--batch-size", "4")


@pytest.fixture(scope="module")
def result() -> bench.BenchResult:
    return bench.run_bench("cpu", batch_size=4, sets=2, steps=1)


def small_case() -> tuple[nn.Module, Tensor, list[Batch]]:
    torch.manual_seed(0)
    batches = [
        Batch(torch.arange(12), torch.randn(12, 1, 8, 8).double(), torch.randint(4, (12,)))
        for _ in range(4)
    ]
    return SmallConv(1, 4, width=4).double(), torch.randn(12, 6).double(), batches


def settings_for(order: int, **others: object) -> Settings:
    return make_settings(sets=3, order=order, update="summed", engine="plain", lr=0.1, **others)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("consistency", ["kl", "mse"])
def test_authors_way_is_our_summed_update(
    order: int, consistency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features_ND, batches = small_case()
    settings = settings_for(order, consistency=consistency)
    fixed_MB = torch.randint(4, (3, 12))
    monkeypatch.setattr("mlnt.meta.tolerance.synthetic_labels", lambda *ignored: fixed_MB)
    monkeypatch.setattr(AuthorsWay, "synthetic_labels", lambda *ignored: fixed_MB)
    ours = MLNT(copy.deepcopy(model), settings, features_ND)
    theirs = AuthorsWay(model, settings, features_ND, torch.Generator())
    for eta in (0.05, 0.1):  # the second step has a momentum and a teacher of its own
        rates = Rates(lr=0.1, eta=eta, gamma=0.9, lam=0.5)
        # The class loss may have batches of its own, from what a mentor kept.
        batch, class_batch = batches.pop(), batches.pop()
        expected = ours.step(batch, class_batch, rates)
        found = theirs.step(batch, class_batch, rates)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11)
    for name, network in ours.models.items():
        for key, value in network.state_dict().items():
            found_value = theirs.models[name].state_dict()[key]
            torch.testing.assert_close(found_value, value, rtol=1e-9, atol=1e-11)


def test_authors_labels_are_ours_where_nothing_is_random() -> None:
    model, features_ND, batches = small_case()
    # All samples replaced, by the label of the one nearest other.
    settings = settings_for(1, rho=1.0, neighbours=1)
    authors = AuthorsWay(model, settings, features_ND, torch.Generator())
    labels_B = batches[0].labels
    found_MB = authors.synthetic_labels(labels_B, features_ND)
    torch.testing.assert_close(found_MB, synthetic_labels(labels_B, features_ND, 3, 1.0, 1))


def test_authors_labels_replace_the_share_asked_for() -> None:
    model, features_ND, _ = small_case()
    settings = settings_for(1, rho=0.5, neighbours=4)
    authors = AuthorsWay(model, settings, features_ND, torch.Generator().manual_seed(0))
    own_B = torch.arange(12)  # every label another: what changed is what was replaced
    labels_MB = authors.synthetic_labels(own_B, features_ND)
    assert labels_MB.shape == (3, 12)
    assert ((labels_MB != own_B).sum(dim=1) == 6).all()
    distances_BB = torch.cdist(features_ND, features_ND).fill_diagonal_(torch.inf)
    nearest_BK = distances_BB.argsort(dim=1)[:, :4]
    for set_B in labels_MB:
        for sample, label in enumerate(set_B.tolist()):
            assert label == sample or label in nearest_BK[sample]


def test_floor_rows_of_a_small_network() -> None:
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Conv2d(4, 4, (3, 1), stride=2, groups=2),
        nn.BatchNorm2d(4),
    )
    statistics = network[5].running_mean.clone()
    kernels = convolution_floor(network, torch.randn(3, 2, 6, 6), 2, torch.float32)
    assert {k.name: k.count for k in kernels} == {
        "3×3 2→4, 6×6, stride 1": 1,
        "3×3 4→4, 6×6, stride 1": 2,
        "3×1 4→4, 6×6, stride 2, 2 groups": 1,
    }
    first, _, grouped = kernels
    missing = {
        (k.name, field) for k in kernels for field, value in vars(k).items() if value is None
    }
    assert missing == {
        (first.name, "input_gradient"),
        (first.name, "folded_input_gradient"),
        (grouped.name, "shared_weight_gradient"),
    }
    for k in kernels:
        times = [v for v in dataclasses.asdict(k).values() if isinstance(v, float)]
        assert len(times) >= 5
        assert min(times) > 0
    assert network.training
    torch.testing.assert_close(network[5].running_mean, statistics)
    assert not network[0]._forward_hooks


def test_sums_of_the_floor_by_hand() -> None:
    first = KernelTime("first", 1, 1.0, None, 2.0, 10.0, None, 20.0, 15.0)
    inside = KernelTime("inside", 2, 1.0, 3.0, 2.0, 10.0, 30.0, 20.0, 15.0)
    grouped = KernelTime("grouped", 1, 1.0, 3.0, 2.0, 10.0, 30.0, 20.0, None)
    # forward + input + weight: 3 + 2 · 6 + 6
    assert floor_of_cross_entropy([first, inside, grouped]) == pytest.approx(0.021)
    # inner + meta + two forward + class: (15 + 30 + 2 + 3) + 2 (45 + 60 + 2 + 6) + (50 + 60 + 8)
    assert floor_of_mlnt([first, inside, grouped], sets=10) == pytest.approx(0.394)
    # Five models one by one: 5 and 10 for 10 and 20 forward and weight, 15 back.
    # (10 + 15 + 2 + 3) + 2 (25 + 30 + 2 + 6) + (25 + 30 + 8)
    assert floor_of_mlnt([first, inside, grouped], sets=5) == pytest.approx(0.219)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("_gradient_sums", "batch norm"),
        ("_fold", "patches and ReLU"),
        ("sm90_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32", "convolution"),
        ("void nhwcSliceCKernel<__nv_bfloat16>", "convolution"),
        ("nvjet_sm90_tst_64x32_64x16_1x2_h_bz_NTT", "matrix product"),
        ("void at::native::multi_tensor_apply_kernel<>", "all parameters at once"),
        ("Memset (Device)", "copies and fills"),
        ("cdist_kernel_cuda_impl", "other"),
    ],
)
def test_kernels_by_kind(kernel: str, kind: str) -> None:
    assert kind_of(kernel) == kind


def test_a_profile_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "--profile", "--device", "cpu"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def row(name: str, ms: float | None, order: int = 1, **others: object) -> Row:
    engine = next((e for e in ("plain", "folded") if e in name), None)
    values = {"model": "preact_resnet32", "batch_size": 128, "sets": 10, **others}
    return Row(name=name, order=order, engine=engine, ms=ms, **values)  # type: ignore[arg-type]


def test_ratios_by_hand() -> None:
    main = [
        row("cross entropy", 2.0),
        row("mlnt plain", 40.0),
        row("mlnt folded", 20.0),
        row("mlnt plain, second order", 50.0, 2),
        row("mlnt folded, second order", None, 2),
        row("authors' way", 200.0),
        row("authors' way, second order", 400.0, 2),
    ]
    assert faster_engine(main) == "folded"
    resnet50 = {"model": "torchvision:resnet50", "batch_size": 32}
    more = [
        row("mlnt", 22.0),
        row("mlnt", 33.0, sets=20),
        row("mlnt", 999.0, batch_size=512),
        row("cross entropy", 7.0, **resnet50),
        row("mlnt plain", 70.0, **resnet50),
        row("authors' way", 140.0, **resnet50),
    ]
    assert ratios(main + more, len(main)) == pytest.approx(
        {
            "mlnt_to_cross_entropy": 10.0,
            "authors_to_ours": 10.0,
            "second_to_first_order": 2.5,
            "resnet50_authors_to_ours": 2.0,
            "m20_to_m10": 1.5,
        }
    )
    assert set(ratios(main[:1], 1).values()) == {None}


def test_every_figure_is_there_and_survives_json(result: bench.BenchResult) -> None:
    assert [r.name for r in result.rows[:7]] == [
        "cross entropy",
        "mlnt plain",
        "mlnt folded",
        "mlnt plain, second order",
        "mlnt folded, second order",
        "authors' way",
        "authors' way, second order",
    ]
    swept = [(r.name, r.batch_size, r.sets) for r in result.rows[7:]]
    mlnt = [("mlnt", batch, sets) for batch in (4, 16) for sets in (1, 2, 5)]
    assert swept == [*mlnt[:3], ("cross entropy", 16, 0), *mlnt[3:]]
    base = {r.batch_size: r.ms for r in result.rows if r.name == "cross entropy"}
    for each in result.rows:
        assert each.error is None, each
        assert each.ms is not None
        assert each.ratio == pytest.approx(each.ms / base[each.batch_size])
        assert len(each.chunks_ms) == (10 if each.name == "cross entropy" else 5)
        assert each.peak_gib is None
        assert each.setup_s is not None
    first, last = result.cross_entropy_ms["first"], result.cross_entropy_ms["last"]
    assert result.rows[0].ms == pytest.approx((first + last) / 2)
    assert {name for name, value in result.ratios.items() if value is None} == {
        "resnet50_authors_to_ours",
        "m20_to_m10",
    }
    assert result.floor.error is None
    assert 0 < result.floor.cross_entropy_ms < result.floor.mlnt_ms
    assert len(result.floor.rows) == 3

    read = json.loads(result.to_json())
    assert list(read) == [field.name for field in dataclasses.fields(result)]
    assert read["paper_iteration_minutes_extrapolated"] is None  # another network
    assert read["rows"][0] == {
        **dataclasses.asdict(result.rows[0]),
        "chunks_ms": list(result.rows[0].chunks_ms),
    }


def test_a_row_that_fails_does_not_end_the_bench(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*ignored: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 1 TiB")

    monkeypatch.setattr(AuthorsWay, "step", fail)
    told: list[str] = []
    result = bench.run_bench("cpu", batch_size=4, sets=2, steps=1, quick=True, tell=told.append)
    assert len(told) == len(result.rows) + 2  # cross entropy again, and the floor
    failed = [r for r in result.rows if r.ms is None]
    assert [r.name for r in failed] == ["authors' way", "authors' way, second order"]
    assert {r.error for r in failed} == {"OutOfMemoryError: CUDA out of memory."}
    assert result.ratios["authors_to_ours"] is None
    assert result.ratios["mlnt_to_cross_entropy"] is not None
    parts = [part for part in result.to_rich() if isinstance(part, str)]
    assert any("CUDA out of memory" in part for part in parts)


def test_no_cross_entropy_no_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*ignored: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(bench_rows, "CrossEntropy", fail)
    result = bench.run_bench("cpu", batch_size=4, sets=2, steps=1, quick=True)
    assert result.rows[0].error == "RuntimeError"
    assert all(r.ratio is None for r in result.rows)
    assert result.cross_entropy_ms == {"first": None, "last": None}
    assert result.ratios["mlnt_to_cross_entropy"] is None
    assert result.ratios["authors_to_ours"] is not None


@pytest.mark.parametrize(
    ("method", "parts"), [("mlnt", [EAGER_STEPS, "reset", 9]), ("authors", [1, "reset", 2])]
)
def test_peak_memory_is_that_of_the_recorded_step(
    method: str, parts: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the steps before it; what is played back allocates nothing."""
    done: list[object] = []
    monkeypatch.setattr(bench_rows, "_runner", lambda *ignored: done.append)
    monkeypatch.setattr(bench_rows, "wait", lambda device: None)
    monkeypatch.setattr(bench_rows, "durations_ms", lambda calls, device: [1.0 for _ in calls])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: done.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    case = bench_rows.Case("a row", method, "small_conv", 4)
    found = bench_rows._measure(case, 5, torch.device("cuda"))
    assert done == parts
    assert found["peak_gib"] == 3.0


def test_commit_of_this_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit() == "unknown" or len(commit().removesuffix("+changes")) == 40
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    assert commit() == "unknown"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_changes_are_those_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    package = tmp_path / "src" / "mlnt"
    package.mkdir(parents=True)
    (package / "origin.py").write_text("# of the package\n")
    (tmp_path / "README.md").write_text("read me\n")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setenv("MLNT_COMMIT", "")  # said by nobody
    monkeypatch.setattr(origin, "__file__", str(package / "origin.py"))
    (tmp_path / "my notes.txt").write_text("untracked\n")
    clean = commit()
    assert re.fullmatch("[0-9a-f]{40}", clean)
    (package / "new.py").write_text("# untracked, but computes\n")
    assert commit() == f"{clean}+changes"
    (package / "new.py").unlink()
    assert commit() == clean
    (tmp_path / "README.md").write_text("changed\n")
    assert commit() == f"{clean}+changes"


def test_command_writes_figures_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, picture = tmp_path / "f.json", tmp_path / "p.png"
    arguments = ["bench", "--quick", *TINY, "--device", "cpu"]
    assert cli.run([*arguments, "--json", str(figures), "--plot", str(picture)]) == 0
    assert len(json.loads(figures.read_text(encoding="utf-8"))["rows"]) == 7
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    for text in ("authors' way, second order", "convolutions alone", "authors to ours"):
        assert text in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "preact_resnet23"], "did you mean 'preact_resnet32'?"),
        (["--plot", "no/such/p.png"], "there is no folder no/such"),
        (["--json", "."], ". exists already"),
        (["--issues", "--json", "no/such/i.json"], "there is no folder no/such"),
    ],
)
def test_mistakes_are_told_before_anything_is_timed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_picture_of_all_rows(result: bench.BenchResult) -> None:
    failed = dataclasses.replace(result.rows[4], ms=None)
    rows = (*result.rows[:4], failed, *result.rows[5:])
    figure = draw_bench(dataclasses.replace(result, rows=rows))
    bars, by_sets = figure.axes
    assert len(bars.patches) == 6
    assert [text.get_text() for text in bars.texts].count("failed") == 1
    assert len(by_sets.lines) == 4  # ours and cross entropy at two batch sizes
