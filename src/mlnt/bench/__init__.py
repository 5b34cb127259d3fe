"""Times a step of each method side by side in one process; a claim is a ratio from one table.

authors.py the yardstick -> floor.py what the convolutions alone need -> rows.py one timed step ->
steps.py the bench -> result.py JSON and tables -> plot.py the picture

ground.py what trainings are compared on, ledger.py the file they go on in -> accuracy.py what M
buys in equal minutes, led.py settings of a led iteration by validation alone

exactness.py the fast paths against the plain ones;
profile.py where the time of a step goes; issues.py found label errors against cleanlab;
scaling.py, scaling_worker.py several processes, measured and modelled
"""

from mlnt.bench.accuracy import SETS, AccuracyResult, run_accuracy
from mlnt.bench.exactness import ExactnessResult, run_exactness
from mlnt.bench.issues import NOISES, IssuesResult, run_issues
from mlnt.bench.led import LedResult, run_led
from mlnt.bench.plot import write_plot
from mlnt.bench.profile import ProfileResult, run_profile
from mlnt.bench.result import BenchResult
from mlnt.bench.rows import SHAPES
from mlnt.bench.scaling import ScalingResult, run_scaling
from mlnt.bench.steps import run_bench

__all__ = [
    "NOISES",
    "SETS",
    "SHAPES",
    "AccuracyResult",
    "BenchResult",
    "ExactnessResult",
    "IssuesResult",
    "LedResult",
    "ProfileResult",
    "ScalingResult",
    "run_accuracy",
    "run_bench",
    "run_exactness",
    "run_issues",
    "run_led",
    "run_profile",
    "run_scaling",
    "write_plot",
]
