"""`python -m tests.corpus`: try every case and write down what it gives."""

import sys
import tempfile
from pathlib import Path

from .running import OUTCOMES, Runs, all_cases, try_case


def main() -> int:
    lines, slow = [], []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs.make(Path(folder) / "runs")
        for number, case in enumerate(all_cases(runs)):
            tried = try_case(case, runs, Path(folder) / f"case-{number}")
            lines.append(f"{tried.status} {case.name}\n")
            slow.append((tried.seconds, tried.megabytes, case.name))
            for problem in tried.problems:
                print(f"{case.name}: {problem}", flush=True)
    OUTCOMES.write_text("".join(sorted(lines, key=lambda line: line.split(" ", 1)[1])), "utf-8")
    print(f"{len(lines)} cases; the slowest and the largest:")
    for seconds, megabytes, name in [*sorted(slow)[-8:], *sorted(slow, key=lambda s: s[1])[-5:]]:
        print(f"  {seconds:5.2f} s  +{megabytes:.0f} MB  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
