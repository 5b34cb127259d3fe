"""What each of the README's three lines adds, with rates chosen for every variant by itself.

    python benchmarks/own_loop.py > benchmarks/cpu-own-loop.txt     (half an hour on one core)

The loop of the README is run as it stands there. Rates are chosen by the accuracy on a third of
the training data that is held out with its true labels, over a few seeds; then each variant is
trained on all training data, with other seeds, and tested.
"""

import itertools
import re
import statistics
import textwrap
from dataclasses import replace
from pathlib import Path

import torch

import mlnt

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"```python\n(import torch\n.*?NoiseTolerance.*?)```", flags=re.DOTALL)
CHOOSING, MEASURING = range(100, 105), range(20)  # seeds
LRS, ETAS = (0.003, 0.01, 0.03, 0.1), (0.02, 0.05, 0.1, 0.2, 0.4)
VARIANTS = {"all three lines": (), "without line 2": (2,), "none of them": (1, 2, 3)}


def accuracy(
    data: mlnt.Dataset, left_out: tuple[int, ...], lr: float, eta: float, seed: int
) -> float:
    """The README's test accuracy on this data, without some of its numbered lines."""
    found = BLOCK.search(README.read_text(encoding="utf-8"))
    assert found is not None
    code = textwrap.dedent(found[1])
    for pattern, value in ((r"\blr=[\d.]+", f"lr={lr}"), (r"\beta=[\d.]+", f"eta={eta}")):
        code, times = re.subn(pattern, value, code)
        assert times == 1, pattern
    code = code.replace('data = mlnt.open_dataset("digits")\n', "")
    for number in left_out:
        code = re.sub(rf"^.*# {number}$\n", "", code, flags=re.MULTILINE)
    if 1 in left_out:
        code = code.replace("tolerance.teacher", "model")
    names = {"data": data}
    torch.manual_seed(seed)
    exec(code, names)
    return float(names["test_accuracy"])


def held_out(data: mlnt.Dataset) -> mlnt.Dataset:
    """Two thirds of the training data, to be tested on the rest."""
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    rest, some = order.tensor_split([2 * len(order) // 3])
    return replace(data, train=data.train.take(rest), test=data.train.take(some))


def main() -> None:
    torch.set_num_threads(1)
    data = mlnt.open_dataset("digits")
    divided = held_out(data)
    for name, left_out in VARIANTS.items():
        etas = (0.0,) if 2 in left_out else ETAS
        validation = {
            (lr, eta): statistics.mean(accuracy(divided, left_out, lr, eta, s) for s in CHOOSING)
            for lr, eta in itertools.product(LRS, etas)
        }
        for (lr, eta), found in validation.items():
            print(f"{name}: lr {lr}, eta {eta}: {found:.1f} on held-out data", flush=True)
        lr, eta = max(validation, key=lambda rates: validation[rates])
        tested = [accuracy(data, left_out, lr, eta, seed) for seed in MEASURING]
        error = statistics.stdev(tested) / len(tested) ** 0.5
        print(
            f"{name}: lr {lr}, eta {eta}: {statistics.mean(tested):.1f} ± {error:.1f} on the test "
            f"set (n={len(tested)})",
            flush=True,
        )


if __name__ == "__main__":
    main()
