"""`MLNTClassifier`: training on noisy labels behind scikit-learn's interface.

X, y -> samples and class numbers, checked -> validation held out -> `train` -> fitted state
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from mlnt.api import train
from mlnt.config import Settings, fields_by_name
from mlnt.data.columns import needs_columns
from mlnt.data.dataset import Dataset
from mlnt.data.encoding import TableEncoder
from mlnt.data.frames import is_frame
from mlnt.data.label_files import as_array, as_texts
from mlnt.data.oddities import filled_cells, other_range
from mlnt.data.prepare import hold_out
from mlnt.data.reading import read_new
from mlnt.data.sources import open_dataset
from mlnt.defaults import choose_settings
from mlnt.device import pick_device
from mlnt.errors import InputError
from mlnt.evaluation import predict_probabilities
from mlnt.models import copy_model
from mlnt.training import Stage, Watcher

FEWEST_HELD_OUT = 10  # below, the training data itself chooses
MOST_CELLS = 200_000_000  # of a sparse matrix, which a network takes as a dense one


class MLNTClassifier(ClassifierMixin, BaseEstimator):
    """A neural network trained on labels of which some are wrong; it says which.

    X may be rows [N, D], images [N, H, W] or [N, C, H, W], texts, or a data frame, which may hold
    categories and missing cells; y any labels that scikit-learn takes. A part of each class is held
    out to choose the best epoch: a tenth of all samples, of few samples twenty or three tenths.
    Where ten cannot be held out, all are trained on, and choose the epoch too.

    After `fit`:
        classes_        the labels that occur, sorted: the columns of `predict_proba`
        label_quality_  [N] in [0, 1], the probability that the label of each training sample is
                        right
        label_issues_   positions in y of the labels below 1/2, the worst first: indices, as
                        cleanlab gives them ranked, for `y[clf.label_issues_]`
        suggested_labels_  [N], y put right: at the positions in label_issues_ the most probable
                        other class, knowing the sample and its label, elsewhere y itself
        noise_rate_     the share of wrong labels to be expected
        noise_interval_ from all doubt taken for hard samples to all doubt taken for wrong labels
        history_        a dictionary per epoch: losses, validation accuracies where labels are
                        learnt, rates
        model_          the network, and encoder_, what turns samples into its inputs
        n_features_in_  of images: the numbers in one; of texts: none
        feature_names_in_  of a data frame

    Parameters:
        model           a name, a network (copied, never changed) or a function that makes one
        preset          a name in `mlnt.config.PRESETS`; chosen by the data if None
        random_state    an int for the same result every time, a RandomState, or None
        verbose         print a line for each stage of the training

    and settings of mlnt, None for what suits the data:
    """

    def __init__(
        self,
        model: str | nn.Module | Callable[[], nn.Module] | None = None,
        *,
        preset: str | None = None,
        method: str | None = None,
        weights: str | None = None,
        iterations: int | None = None,
        sets: int | None = None,
        rho: float | None = None,
        neighbours: int | None = None,
        alpha: float | None = None,
        eta: float | None = None,
        order: int | None = None,
        tau: float | str | None = None,
        lam: float | None = None,
        epochs: int | None = None,
        last_epochs: int | str | None = None,
        self_epochs: int | str | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        validation_share: float | None = None,
        crop_padding: int | None = None,
        flip: bool | None = None,
        cutout: int | None = None,
        device: str | None = None,
        precision: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.preset = preset
        self.method = method
        self.weights = weights
        self.iterations = iterations
        self.sets = sets
        self.rho = rho
        self.neighbours = neighbours
        self.alpha = alpha
        self.eta = eta
        self.order = order
        self.tau = tau
        self.lam = lam
        self.epochs = epochs
        self.last_epochs = last_epochs
        self.self_epochs = self_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.validation_share = validation_share
        self.crop_padding = crop_padding
        self.flip = flip
        self.cutout = cutout
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Train on samples and labels of which some may be wrong."""
        samples, labels = self._samples(X, first=True), _labels(y)
        check_consistent_length(samples, labels)
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"y has one class only ({classes[0]}); a classifier needs two")
        dataset = open_dataset((samples, numbers))
        dataset = replace(dataset, classes=tuple(str(name) for name in classes))
        settings = self._given_settings()
        wanted = choose_settings(dataset, self._device(), self.preset, settings).settings
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        dataset = self._with_validation(dataset, wanted.validation_share, seed)
        batch_size = min(wanted.batch_size, len(dataset.train))
        training = train(
            dataset,
            preset=self.preset,
            model=self.model,
            watchers=[_Lines()] if self.verbose else [],
            **{**settings, "batch_size": batch_size, "seed": seed},
        )
        self.classes_ = classes
        self.model_ = training.model
        self.encoder_ = training.encoder
        self.history_ = training.history
        issues = training.label_issues
        in_order = issues.positions.argsort()
        self.label_quality_ = (1 - issues.score[in_order]).numpy()
        self.label_issues_ = issues.positions[issues.flagged].numpy()
        self.suggested_labels_ = classes[issues.suggested[in_order].numpy()]
        self.noise_rate_, self.noise_interval_ = issues.noise_rate, issues.noise_interval
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities [N, C] of the classes, in the order of `classes_`."""
        check_is_fitted(self)
        inputs = self.encoder_.encode(self._samples(X, first=False))
        for note in other_range(inputs, self.encoder_, "these"):
            warnings.warn(note, stacklevel=2)
        return predict_probabilities(self.model_.to(self._device()), inputs).cpu().numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms; −∞ of a probability that is none in float32."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each sample."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def __getstate__(self) -> dict[str, Any]:
        """Pickled and copied with the network on the CPU: the reader may have no such GPU."""
        state = {**super().__getstate__()}
        if "model_" in state:
            state["model_"] = copy_model(self.model_).cpu()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.sparse = True
        return tags

    def _given_settings(self) -> dict[str, Any]:
        """Without the model, which `train` takes as a name or as a network."""
        return {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name in fields_by_name() and name != "model" and value is not None
        }

    def _device(self) -> torch.device:
        return pick_device(self.device or Settings.device)

    def _samples(self, X: Any, first: bool) -> Any:
        """Rows, images or texts, checked as scikit-learn does; the `first` set what may follow."""
        X = as_array(X, "X") if isinstance(X, Tensor) else _dense(X) if issparse(X) else X
        axes, texts = _axes(X), as_texts(X, "X")
        kind = "text" if texts is not None else "image" if axes in (3, 4) else "table"
        if not first and kind != self.encoder_.kind:
            wanted = {"text": "; give a list of texts"}.get(self.encoder_.kind, "")
            raise InputError(f"fit had {self.encoder_.kind} data, X is {kind} data{wanted}")
        if texts is not None:
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)  # of an earlier fit
            return texts
        if kind == "image":
            images = np.asarray(X)
            rows = images.reshape(len(images), math.prod(images.shape[1:]))
            checked = validate_data(self, rows, reset=first, force_writeable=True)
            return checked.reshape(images.shape)
        if is_frame(X) and not first:
            return self._filled(X)
        if is_frame(X) and needs_columns(X):
            return validate_data(self, X, reset=first, skip_check_array=True)
        with _saying_what_frames_may():
            return validate_data(self, X, reset=first, force_writeable=True)

    def _filled(self, X: Any) -> np.ndarray:
        """Rows of numbers of a data frame; what is missing is filled, as `mlnt.predict` does it."""
        assert isinstance(self.encoder_, TableEncoder)
        if self.encoder_.made_of:
            checked = validate_data(self, X, reset=False, skip_check_array=True)
            raw, notes = read_new(checked, self.encoder_, None, None)
            rows_ND = raw.samples
        else:
            rows_ND = validate_data(self, X, reset=False, ensure_all_finite="allow-nan")
            names = getattr(self, "feature_names_in_", self.encoder_.columns)
            notes = filled_cells(names, np.isnan(rows_ND))
            rows_ND = self.encoder_.filled(rows_ND)
        for note in notes:
            warnings.warn(note, stacklevel=4)
        return rows_ND

    def _with_validation(self, dataset: Dataset, share: float, seed: int) -> Dataset:
        """A share of each class held out; where that is too little, the training data once more."""
        fewest = FEWEST_HELD_OUT if self.validation_share is None else 1
        try:
            split = hold_out(dataset, share, torch.Generator().manual_seed(seed))
        except InputError:  # no class is large enough
            return replace(dataset, validation=dataset.train)
        too_few = split.validation is None or len(split.validation) < fewest
        return replace(dataset, validation=dataset.train) if too_few else split


# What a setting means is written once, in config.py.
MLNTClassifier.__doc__ = f"{MLNTClassifier.__doc__}".rstrip() + "".join(
    f"\n        {name:<15} {field.metadata['meaning']}"
    for name, field in fields_by_name().items()
    if name in MLNTClassifier().get_params() and name != "model"
)


def _axes(X: Any) -> int:
    return X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim


def _dense(X: Any) -> np.ndarray:
    cells = math.prod(X.shape)
    if cells > MOST_CELLS:
        raise InputError(
            f"X is sparse, and as a dense matrix has {cells:,} cells, the limit is {MOST_CELLS:,}; "
            "give texts as they are, or fewer columns"
        )
    return X.toarray()


@contextlib.contextmanager
def _saying_what_frames_may() -> Iterator[None]:
    """Scikit-learn says that missing values are not taken; of data frames they are."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("Input X contains NaN"):
            raise
        raise InputError(
            "Input X contains NaN; fill it, or give a data frame (pandas.DataFrame(X)) to fit and "
            "to predict, of which missing cells are taken"
        ) from None


def _labels(y: Any) -> np.ndarray:
    """Labels [N] of one type, none of them missing."""
    labels = column_or_1d(as_array(y, "y") if isinstance(y, Tensor) else y, warn=True)
    if labels.dtype == object:
        for row, label in enumerate(labels):
            # Two missing values are not equal, or (pandas.NA) not known to be.
            if label is None or not isinstance(label == label, bool | np.bool_) or label != label:
                raise InputError(f"label {row} is missing ({label})")
        kinds = {str if isinstance(label, str) else type(label) for label in labels}
        if len(kinds) > 1:
            names = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise InputError(f"labels must be of one type, got {names}")
        if str not in kinds:  # numbers, which scikit-learn takes as such only
            labels = column_or_1d(np.array(labels.tolist()))
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return labels


class _Lines(Watcher):
    """A line for each stage when it has ended, and for what its mentor keeps."""

    def stage_begins(self, stage: Stage, epochs: int, steps: int, done: int) -> None:
        self.stage, self.epochs = stage, epochs

    def epoch_ends(self, row: dict[str, Any]) -> None:
        if row["epoch"] == self.epochs:
            figures = ", ".join(
                f"{model} {row[model]['validation']:.1f} %"
                for model in ("student", "teacher")
                if model in row
            )
            validation = f", validation: {figures}" if figures else ""
            print(f"{self.stage.name}: {self.epochs} epochs{validation}")

    def filtered(self, report: dict[str, Any]) -> None:
        print(f"mentor keeps {report['kept']} of {report['of']} labels")
