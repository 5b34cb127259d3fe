"""mlnt: train classifiers on data whose labels are partly wrong, and find the wrong labels.

    data -> noise (experiments only) -> synthetic labels -> meta update -> class update
         -> teacher -> epochs -> mentor iterations -> run folder -> label issues, report,
            predictions

The method is MLNT, from "Learning to Learn from Noisy Labeled Data" (Li et al., CVPR 2019).
"""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

import mlnt._openmp  # noqa: F401
from mlnt.api import Training, train
from mlnt.data.dataset import Dataset
from mlnt.data.noise import asymmetric_noise, symmetric_noise, transition_noise
from mlnt.data.sources import open_dataset
from mlnt.errors import InputError, Stopped, TrainingError
from mlnt.label_issues import LabelIssues, find_label_issues
from mlnt.meta.gradient import meta_gradient
from mlnt.meta.labels import synthetic_labels
from mlnt.meta.tolerance import NoiseTolerance
from mlnt.prediction import Prediction, predict

__all__ = [
    "Dataset",
    "InputError",
    "LabelIssues",
    "MLNTClassifier",
    "NoiseTolerance",
    "Prediction",
    "Stopped",
    "Training",
    "TrainingError",
    "asymmetric_noise",
    "find_label_issues",
    "meta_gradient",
    "open_dataset",
    "predict",
    "symmetric_noise",
    "synthetic_labels",
    "train",
    "transition_noise",
]

if TYPE_CHECKING:
    from mlnt.estimator import MLNTClassifier
else:

    def __getattr__(name: str) -> Any:
        """`MLNTClassifier` when it is asked for: scikit-learn takes half as long as all else."""
        if name == "MLNTClassifier":
            from mlnt.estimator import MLNTClassifier

            return MLNTClassifier
        raise AttributeError(f"module 'mlnt' has no attribute {name!r}")
