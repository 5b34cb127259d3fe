"""`python -m tests.fuzz PARSER... --minutes 10`: status 1 and the input that broke a parser."""

import argparse
import datetime
import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from .parsers import PARSERS

HERE = Path(__file__).parent
RECORD = HERE / "record.jsonl"
SECONDS_OF_ONE, MEGABYTES = 20, 3000  # an input that takes more of either is a finding


def main() -> int:
    options = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    options.add_argument("parsers", nargs="+", metavar="PARSER", help=f"all, {', '.join(PARSERS)}")
    options.add_argument("--minutes", type=float, default=10, help="for each [10]")
    options.add_argument("--no-record", action="store_true", help=f"leave {RECORD.name} as it is")
    given = options.parse_args()
    names = list(PARSERS) if given.parsers == ["all"] else given.parsers
    if unknown := set(names) - set(PARSERS):
        options.error(f"no parser {', '.join(sorted(unknown))}; there are {', '.join(PARSERS)}")
    if importlib.util.find_spec("atheris") is None:
        options.error("atheris is not installed; pip install atheris")
    found = 0
    for name in names:
        outcome = fuzz(name, given.minutes)
        found += outcome["findings"]
        print(json.dumps(outcome), flush=True)
        if not given.no_record:
            with RECORD.open("a", encoding="utf-8") as file:
                file.write(json.dumps(outcome) + "\n")
    return 1 if found else 0


def fuzz(name: str, minutes: float) -> dict[str, object]:
    """Run one parser; what broke it, if anything did, is left in findings/."""
    findings = HERE / "findings" / name
    findings.mkdir(parents=True, exist_ok=True)
    before, computed = set(findings.iterdir()), _computed()
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(PARSERS[name].seeds()):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.fuzz.target", name, corpus),
                f"-max_total_time={round(60 * minutes)}",
                f"-timeout={SECONDS_OF_ONE}",
                f"-rss_limit_mb={MEGABYTES}",
                f"-artifact_prefix={findings}{os.sep}",
                "-print_final_stats=1",
                "-max_len=16384",
            ],
            capture_output=True,
            text=True,
            errors="replace",
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        kept = len(list(Path(corpus).iterdir()))
    new = sorted(path.name for path in set(findings.iterdir()) - before)
    if done.returncode and not new:
        print(done.stderr[-4000:], file=sys.stderr)
    elif new:
        print(_traceback(done.stdout + done.stderr), file=sys.stderr)
    if not any(findings.iterdir()):
        findings.rmdir()
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    return {
        "date": datetime.date.today().isoformat(),
        "parser": name,
        "minutes": minutes,
        "computed_seconds": round(_computed() - computed),
        "executions": int(runs[1]) if runs else 0,
        "branches": int(covered[-1]) if covered else 0,
        "inputs_kept": kept,
        "findings": len(new) or int(done.returncode != 0),
    }


def _computed() -> float:
    """By processes that have ended: beside other programs minutes say little."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _traceback(text: str) -> str:
    start = text.find("=== Uncaught")
    return text[start if start >= 0 else -3000 :][:3000]


if __name__ == "__main__":
    sys.exit(main())
