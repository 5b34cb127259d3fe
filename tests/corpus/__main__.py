"""`python -m tests.corpus [PATTERN]`: try every case, or some, and write down what they give."""

import fnmatch
import sys
import tempfile
from pathlib import Path

from .running import OUTCOMES, VARYING, Runs, all_cases, outcomes, try_case


def main() -> int:
    pattern = sys.argv[1] if len(sys.argv) > 1 else "*"
    cases, costs, problems = all_cases(), [], 0
    found = {name: status for name, status in outcomes().items() if name in cases}
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs.make(Path(folder) / "runs")
        for name in fnmatch.filter(cases, pattern):
            tried = try_case(cases[name], runs, Path(folder) / "case")
            costs.append((tried.seconds, name))
            if not name.startswith(VARYING):
                found[name] = tried.status
            for problem in tried.problems:
                problems += 1
                print(f"{name}: {problem}", flush=True)
    lines = (f"{status} {name}\n" for name, status in sorted(found.items()))
    OUTCOMES.write_text("".join(lines), encoding="utf-8")
    print(f"{len(costs)} cases in {sum(cost for cost, _ in costs):.0f} s; the slowest:")
    for seconds, name in sorted(costs)[-10:]:
        print(f"  {seconds:5.2f} s  {name}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
