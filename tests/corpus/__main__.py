"""`python -m tests.corpus`: try every case and write down what it gives."""

import sys
import tempfile
from pathlib import Path

from .running import OUTCOMES, Runs, all_cases, try_case

VARYING = ("damaged/", "checkpoint/")  # by the figures of the run that is damaged


def main() -> int:
    lines, costs, problems = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs.make(Path(folder) / "runs")
        for case in all_cases().values():
            tried = try_case(case, runs, Path(folder) / "case")
            costs.append((tried.seconds, case.name))
            if not case.name.startswith(VARYING):
                lines.append(f"{tried.status} {case.name}\n")
            for problem in tried.problems:
                problems += 1
                print(f"{case.name}: {problem}", flush=True)
    OUTCOMES.write_text("".join(sorted(lines, key=lambda line: line.split(" ", 1)[1])), "utf-8")
    print(f"{len(costs)} cases in {sum(cost for cost, _ in costs):.0f} s; the slowest:")
    for seconds, name in sorted(costs)[-10:]:
        print(f"  {seconds:5.2f} s  {name}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
