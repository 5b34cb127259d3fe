"""What each of the README's three lines adds, with rates chosen for every variant by itself.

    python benchmarks/own_loop.py > benchmarks/cpu-own-loop.txt     (half an hour on one core)

The loop of the README is run as it stands there. Rates are chosen by the accuracy on a third of
the training data that is held out with its true labels, over a few seeds; then each variant is
trained on all training data, with other seeds, and tested. At last, with the rates of all three
lines, a second iteration whose mentor is the first teacher, as docs/own-loop.md shows it.
"""

import itertools
import re
import statistics
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import mlnt

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"```python\n(import torch\n.*?NoiseTolerance.*?)```", flags=re.DOTALL)
CHOOSING, SEEDS = range(100, 105), range(20)  # of the held-out data, of the test set
LRS, ETAS = (0.003, 0.01, 0.03, 0.1), (0.02, 0.05, 0.1, 0.2, 0.4)
VARIANTS = {"all three lines": (), "without line 2": (2,), "none of them": (1, 2, 3)}


def loop(lr: float, eta: float, left_out: tuple[int, ...] = ()) -> str:
    """The README's, on `data` that is given, without some of its numbered lines."""
    found = BLOCK.search(README.read_text(encoding="utf-8"))
    assert found is not None
    code = changed(textwrap.dedent(found[1]), r"data = mlnt.open_dataset.*\n", "")
    for name, value in (("lr", lr), ("eta", eta)):
        code = changed(code, rf"\b{name}=[\d.]+", f"{name}={value}")
    for number in left_out:
        code = re.sub(rf"^.*# {number}$\n", "", code, flags=re.MULTILINE)
    return code.replace("tolerance.teacher", "model") if 1 in left_out else code


def changed(code: str, pattern: str, by: str) -> str:
    code, times = re.subn(pattern, by, code)
    assert times == 1, pattern
    return code


def run(code: str, seed: int, **names: Any) -> dict[str, Any]:
    torch.manual_seed(seed)
    exec(code, names)
    return names


def accuracy(
    data: mlnt.Dataset, left_out: tuple[int, ...], lr: float, eta: float, seed: int
) -> float:
    return float(run(loop(lr, eta, left_out), seed, data=data)["test_accuracy"])


def of_second_iteration(data: mlnt.Dataset, lr: float, eta: float, seed: int) -> float:
    first = run(loop(lr, eta), seed, data=data)
    mentor, labels = first["tolerance"].teacher, first["labels"]
    with torch.no_grad():
        probabilities = mentor.eval()(data.train.inputs).softmax(dim=1)
    features = data.train.inputs.flatten(1)
    issues = mlnt.find_label_issues(labels, probabilities, features=features)
    keep = torch.ones(len(labels), dtype=torch.bool)
    keep[issues.positions[issues.flagged]] = False
    code = loop(lr, eta)
    code = changed(code, r"labels = mlnt.symmetric_noise.*\n", "")
    code = changed(code, r"NoiseTolerance\(model,", "NoiseTolerance(model, mentor=mentor,")
    code = changed(code, r"eta=[\d.]+\)", f"eta={eta}, lam=0.5 * epoch / 20)")
    code = changed(code, r"model\(x\), y\)", "model(x[keep[batch]]), y[keep[batch]])")
    second = run(code, seed + 1000, data=data, labels=labels, mentor=mentor, keep=keep)
    return float(second["test_accuracy"])


def held_out(data: mlnt.Dataset) -> mlnt.Dataset:
    """Two thirds of the training data, to be tested on the rest."""
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    rest, some = order.tensor_split([2 * len(order) // 3])
    return replace(data, train=data.train.take(rest), test=data.train.take(some))


def main() -> None:
    torch.set_num_threads(1)
    data = mlnt.open_dataset("digits")
    divided, rates = held_out(data), {}
    for name, left_out in VARIANTS.items():
        etas = (0.0,) if 2 in left_out else ETAS
        validation = {
            (lr, eta): statistics.mean(accuracy(divided, left_out, lr, eta, s) for s in CHOOSING)
            for lr, eta in itertools.product(LRS, etas)
        }
        for (lr, eta), found in validation.items():
            print(f"{name}: lr {lr}, eta {eta}: {found:.1f} on held-out data", flush=True)
        rates[name] = max(validation, key=lambda pair: validation[pair])
        lr, eta = rates[name]
        tell(f"{name}: lr {lr}, eta {eta}", [accuracy(data, left_out, lr, eta, s) for s in SEEDS])
    lr, eta = rates["all three lines"]
    tell("second iteration", [of_second_iteration(data, lr, eta, seed) for seed in SEEDS])


def tell(what: str, tested: list[float]) -> None:
    mean, error = statistics.mean(tested), statistics.stdev(tested) / len(tested) ** 0.5
    print(f"{what}: {mean:.1f} ± {error:.1f} on the test set (n={len(tested)})", flush=True)


if __name__ == "__main__":
    main()
