"""MLNTClassifier: scikit-learn's own checks, noise it withstands, inputs of every kind."""

import copy
import inspect
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import mlnt
from mlnt import InputError, MLNTClassifier
from mlnt.config import fields_by_name
from mlnt.networks import MLP


def quick(**settings: object) -> MLNTClassifier:
    """Few steps: enough to tell the irises apart."""
    usual = {"epochs": 8, "iterations": 1, "sets": 1, "batch_size": 64, "random_state": 0}
    return MLNTClassifier(**{**usual, **settings})


@parametrize_with_checks([quick()])
def test_scikit_learn_checks(estimator: MLNTClassifier, check) -> None:
    check(estimator)


@dataclass(frozen=True)
class NoisyDigits:
    rows: np.ndarray
    labels: np.ndarray
    given: np.ndarray  # half of the labels drawn at random
    wrong: np.ndarray
    test_rows: np.ndarray
    test_labels: np.ndarray


@pytest.fixture(scope="module")
def digits() -> NoisyDigits:
    rows, labels = load_digits(return_X_y=True)
    rows, test_rows, labels, test_labels = train_test_split(
        rows, labels, test_size=0.25, random_state=0, stratify=labels
    )
    generator = torch.Generator().manual_seed(0)
    given = mlnt.symmetric_noise(torch.tensor(labels), 0.5, 10, generator).numpy()
    return NoisyDigits(rows, labels, given, given != labels, test_rows, test_labels)


@pytest.fixture(scope="module")
def irises() -> tuple[np.ndarray, np.ndarray]:
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def others(digits: NoisyDigits) -> float:
    """What the better of two usual classifiers makes of the noisy labels."""
    usual = [
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        MLPClassifier(max_iter=100, early_stopping=True, random_state=0),
    ]
    return max(
        model.fit(digits.rows, digits.given).score(digits.test_rows, digits.test_labels)
        for model in usual
    )


class TestNoise:
    @pytest.mark.parametrize(
        ("shape", "epochs"), [((-1, 64), 10), ((-1, 8, 8), 7)], ids=["rows", "images"]
    )
    def test_withstood_and_found(
        self, digits: NoisyDigits, others: float, shape: tuple, epochs: int
    ) -> None:
        found = MLNTClassifier(epochs=epochs, iterations=2, sets=1, random_state=0)
        found.fit(digits.rows.reshape(shape), digits.given)
        assert found.score(digits.test_rows.reshape(shape), digits.test_labels) > others + 0.02
        assert found.n_features_in_ == 64
        quality, issues = found.label_quality_, found.label_issues_
        assert roc_auc_score(~digits.wrong, quality) > 0.95
        assert found.noise_rate_ == pytest.approx(digits.wrong.mean(), abs=0.08)
        assert digits.wrong[issues[:100]].mean() > 0.95
        # The issues are the labels below one half, the worst first.
        np.testing.assert_array_equal(np.sort(issues), np.flatnonzero(quality < 0.5))
        assert (np.diff(quality[issues]) >= 0).all()
        # Suggested is another class there, mostly the right one, and elsewhere the label itself.
        suggested = found.suggested_labels_
        np.testing.assert_array_equal(np.flatnonzero(suggested != digits.given), np.sort(issues))
        assert (suggested[issues] == digits.labels[issues]).mean() > 0.85


class TestLabels:
    @pytest.mark.parametrize(
        ("names", "kind"),
        [
            (["setosa", "versicolor", "virginica"], np.str_),
            ([10, -2, 9], np.integer),
            ([0.0, 2.0, 10.0], np.floating),
        ],
    )
    def test_of_any_type_come_back(self, irises: tuple, names: list, kind: type) -> None:
        rows, numbers = irises
        labels = np.array(names)[numbers]
        found = quick().fit(rows, labels)
        np.testing.assert_array_equal(found.classes_, np.unique(labels))
        assert issubclass(found.predict(rows).dtype.type, kind)
        assert found.score(rows, labels) > 0.8

    def test_bools_objects_and_tensors(self, irises: tuple) -> None:
        rows, numbers = irises
        is_setosa = quick().fit(rows, numbers == 0).predict(rows)
        assert is_setosa.dtype == bool
        assert (is_setosa == (numbers == 0)).mean() > 0.9
        words = np.array(["a", "b", "c"], dtype=object)[numbers]
        assert quick().fit(rows, words).predict(rows).dtype == object
        as_objects = quick().fit(rows, numbers.astype(object))
        as_tensors = quick().fit(torch.tensor(rows), torch.tensor(numbers))
        np.testing.assert_array_equal(as_objects.classes_, [0, 1, 2])
        np.testing.assert_array_equal(
            as_objects.predict_proba(rows), as_tensors.predict_proba(torch.tensor(rows))
        )

    def test_order_of_classes_is_that_of_probabilities(self, irises: tuple) -> None:
        rows, numbers = irises
        labels = np.array([100, 9, -1])[numbers]  # sorted as words, 100 would come before 9
        found = quick().fit(rows, labels)
        best = found.predict_proba(rows).argmax(axis=1)
        np.testing.assert_array_equal(found.classes_[best], found.predict(rows))
        assert found.score(rows, labels) > 0.8

    def test_logarithms_of_probabilities(
        self, irises: tuple, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = quick().fit(*irises)
        rows = irises[0]
        np.testing.assert_array_equal(
            np.exp(found.predict_log_proba(rows)).argmax(axis=1),
            found.predict_proba(rows).argmax(axis=1),
        )
        monkeypatch.setattr(found, "predict_proba", lambda X: np.array([[1.0, 0.0]]))
        assert found.predict_log_proba(rows).tolist() == [[0.0, -np.inf]]


class TestFrames:
    def test_names_are_kept_and_compared(self, irises: tuple) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        rows, numbers = irises
        frame = pandas.DataFrame(rows, columns=["a", "b", "c", "d"])
        frame["big"] = frame["a"] > 6
        found = quick().fit(frame, pandas.Series(numbers, index=range(1000, 1150)))
        assert list(found.feature_names_in_) == ["a", "b", "c", "d", "big"]
        assert found.n_features_in_ == 5
        assert found.score(frame, numbers) > 0.8
        with pytest.raises(ValueError, match="feature names should match"):
            found.predict(frame[["b", "a", "c", "d", "big"]])

    def test_words_are_categories_if_few(self, irises: tuple) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        rows, numbers = irises
        frame = pandas.DataFrame(rows, columns=["a", "b", "c", "d"])
        coloured = frame.assign(colour=["red", "blue", "red"] * 50)
        assert quick().fit(coloured, numbers).score(coloured, numbers) > 0.8
        with pytest.raises(InputError, match=r"column 'colour' .* too many for categories"):
            quick().fit(frame.assign(colour=[f"c{i}" for i in range(150)]), numbers)
        with pytest.raises(ValueError, match="NaN"):
            quick().fit(np.where(rows > 5, np.nan, rows), numbers)
        as_objects = frame.astype({"a": object})
        np.testing.assert_array_equal(
            quick().fit(as_objects, numbers).predict(as_objects),
            quick().fit(frame, numbers).predict(frame),
        )

    def test_missing_labels_are_refused(self, irises: tuple) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        rows, numbers = irises
        labels = pandas.Series(numbers).map({0: "x", 1: "y", 2: "z"})
        assert list(quick().fit(rows, labels.astype("category")).classes_) == ["x", "y", "z"]
        for missing in (None, np.nan, pandas.NA):
            broken = labels.astype(object)
            broken[7] = missing
            with pytest.raises(InputError, match="label 7 is missing"):
                quick().fit(rows, broken)

    def test_one_column_of_texts_is_a_column(self) -> None:
        pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
        texts, labels = ["soup and bread", "goal and match"] * 20, [0, 1] * 20
        frame = pandas.DataFrame({"text": texts}, index=range(100, 140))
        found = quick().fit(frame, labels)
        assert found.encoder_.kind == "text"
        np.testing.assert_array_equal(found.predict_proba(frame), found.predict_proba(texts))
        of_numbers = quick().fit(pandas.DataFrame({"n": labels}), labels)
        assert list(of_numbers.feature_names_in_) == ["n"]


def test_texts() -> None:
    generator = np.random.default_rng(0)
    words = {"sport": ["goal", "match", "team"], "food": ["bread", "soup", "salt"]}
    labels = np.repeat(["sport", "food"], 60)
    texts = [" ".join(generator.choice(words[label], 4)) for label in labels]
    found = quick(epochs=6, batch_size=16).fit(texts, labels)
    assert found.score(texts, labels) > 0.9
    np.testing.assert_array_equal(
        found.predict_proba(np.array(texts)), found.predict_proba(np.array(texts, dtype=object))
    )
    encoded = [text.encode() for text in texts]
    np.testing.assert_array_equal(
        found.predict_proba(np.array(encoded)), found.predict_proba(texts), "bytes are UTF-8"
    )
    with pytest.raises(InputError, match="at index 1 there are bytes that are not UTF-8"):
        found.predict([b"soup", b"\xff"])
    with pytest.raises(InputError, match="fit had text data, X is table data"):
        found.predict(np.zeros((3, 4)))
    with pytest.raises(InputError, match="at index 1 there is None"):
        found.predict(["soup", None])
    # A later fit leaves nothing of an earlier one behind.
    found.fit(np.c_[np.arange(120.0), np.ones(120)], labels)
    assert found.n_features_in_ == 2
    assert not hasattr(found.fit(texts, labels), "n_features_in_")


class TestImages:
    def test_channels_may_come_last(self) -> None:
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (60, 3, 8, 8)).astype(np.uint8)
        labels = np.arange(60) % 2
        images[labels == 1, 0] //= 4
        first = quick().fit(images, labels)
        assert first.n_features_in_ == 3 * 8 * 8
        assert first.score(images, labels) > 0.9
        with pytest.warns(UserWarning, match="these images have values from 0 to 1, "):
            first.predict(images / 255)
        last = quick().fit(images.transpose(0, 2, 3, 1), labels)
        np.testing.assert_array_equal(
            first.predict_proba(images), last.predict_proba(images.transpose(0, 2, 3, 1))
        )
        with pytest.raises(InputError, match="fit had image data, X is table data"):
            first.predict(images.reshape(60, -1))
        with pytest.raises(InputError, match="images must have the shape"):
            first.predict(images.reshape(60, 3, 4, 16))

    def test_nan_is_refused(self) -> None:
        images = np.ones((20, 4, 4))
        images[3, 2, 1] = np.nan
        with pytest.raises(ValueError, match="contains NaN"):
            quick().fit(images, np.arange(20) % 2)


class TestAsOneOfMany:
    def test_pickle_and_copy(self, irises: tuple) -> None:
        rows, numbers = irises
        found = quick().fit(rows, numbers)
        for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
            np.testing.assert_array_equal(other.predict_proba(rows), found.predict_proba(rows))
            np.testing.assert_array_equal(other.label_quality_, found.label_quality_)
            assert other.model_ is not found.model_
            assert other.get_params() == found.get_params()
        assert not hasattr(pickle.loads(pickle.dumps(quick())), "model_")

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_pickle_holds_no_gpu_memory(self, irises: tuple) -> None:
        rows, numbers = irises
        found = quick(device="cuda").fit(rows, numbers)
        before = found.predict_proba(rows)
        other = pickle.loads(pickle.dumps(found)).set_params(device="cpu")
        assert {weight.device.type for weight in found.model_.parameters()} == {"cuda"}
        assert {weight.device.type for weight in other.model_.parameters()} == {"cpu"}
        np.testing.assert_allclose(other.predict_proba(rows), before, atol=1e-2)

    def test_clone_takes_a_network_along(self, irises: tuple) -> None:
        rows, numbers = irises
        torch.manual_seed(0)
        network = MLP(4, 3, width=16)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        found = clone(quick(model=network)).fit(rows, numbers)
        assert found.score(rows, numbers) > 0.8
        assert found.model is not network
        for name, value in network.state_dict().items():
            torch.testing.assert_close(value, before[name], rtol=0, atol=0)
        made = quick(model=lambda: MLP(4, 3, width=16)).fit(rows, numbers)
        assert made.score(rows, numbers) > 0.8

    def test_sparse_rows_are_those_of_the_dense_matrix(self, irises: tuple) -> None:
        rows, numbers = irises
        found, expected = quick().fit(csr_array(rows), numbers), quick().fit(rows, numbers)
        np.testing.assert_array_equal(
            found.predict_proba(csr_array(rows)), expected.predict_proba(rows)
        )
        with pytest.raises(InputError, match="as a dense matrix has 4,000,000,000 cells"):
            quick().fit(csr_array((2, 2_000_000_000)), [0, 1])

    def test_threads_do_not_draw_for_each_other(self, irises: tuple) -> None:
        rows, numbers = irises

        def learn(_: int) -> np.ndarray:
            return quick().fit(rows, numbers).predict_proba(rows)

        expected = learn(0)
        with ThreadPoolExecutor(2) as threads:
            for found in threads.map(learn, range(2)):
                np.testing.assert_array_equal(found, expected)

    def test_random_state(self, irises: tuple) -> None:
        rows, numbers = irises

        def probabilities(random_state: object) -> np.ndarray:
            return quick(random_state=random_state).fit(rows, numbers).predict_proba(rows)

        first = probabilities(1)
        np.testing.assert_array_equal(first, probabilities(1))
        np.testing.assert_array_equal(first, probabilities(np.random.RandomState(1)))
        assert not np.array_equal(first, probabilities(2))
        assert not np.array_equal(probabilities(None), probabilities(None))

    def test_pipeline_search_and_cross_validation(self, irises: tuple) -> None:
        rows, numbers = irises
        pipeline = make_pipeline(StandardScaler(), quick(batch_size=16))
        assert cross_val_score(pipeline, rows, numbers, cv=3).mean() > 0.8
        search = GridSearchCV(pipeline, {"mlntclassifier__sets": [1, 2]}, cv=2)
        search.fit(rows, numbers)
        assert search.best_params_["mlntclassifier__sets"] in (1, 2)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()


class TestSettings:
    def test_every_parameter_is_one_or_is_explained(self) -> None:
        parameters = inspect.signature(MLNTClassifier).parameters
        own = {"preset", "random_state", "verbose"}
        assert set(parameters) - own <= set(fields_by_name())
        assert all(parameter.default in (None, False) for parameter in parameters.values())
        for name in parameters:
            assert f"        {name} " in (MLNTClassifier.__doc__ or ""), name

    def test_are_passed_on(self, irises: tuple) -> None:
        found = quick(epochs=3, iterations=2, lr=0.05).fit(*irises)
        stages = [(row["method"], row["iteration"]) for row in found.history_]
        assert stages == [("cross_entropy", 0)] * 3 + [("mlnt", 1)] * 3 + [("mlnt", 2)] * 3
        assert found.history_[0]["lr"] == 0.05
        plain = quick(method="cross_entropy", preset="table").fit(*irises)
        assert {row["method"] for row in plain.history_} == {"cross_entropy"}

    def test_verbose_prints_a_line_per_stage(
        self, irises: tuple, capsys: pytest.CaptureFixture[str]
    ) -> None:
        quick(iterations=2).fit(*irises)
        assert capsys.readouterr().out == ""
        quick(iterations=2, verbose=True).fit(*irises)
        lines = capsys.readouterr().out.splitlines()
        starts = [line.split(":")[0].split(" keeps")[0] for line in lines]
        assert starts == ["cross_entropy", "mlnt iteration 1", "mentor", "mlnt iteration 2"]


class TestSmallData:
    @pytest.mark.parametrize("count", [2, 3, 5, 11, 34, 50])
    def test_any_number_of_samples(self, count: int) -> None:
        rows = np.arange(count, dtype=float)[:, None]
        found = quick(epochs=2, iterations=2).fit(rows, np.arange(count) % 2)
        assert found.label_quality_.shape == (count,)
        assert ((found.label_quality_ >= 0) & (found.label_quality_ <= 1)).all()

    def test_rare_classes_stay_in_training(self) -> None:
        rows = np.random.default_rng(0).normal(size=(43, 2))
        labels = np.array(["common"] * 40 + ["pair"] * 2 + ["single"])
        assert list(quick().fit(rows, labels).classes_) == ["common", "pair", "single"]

    @pytest.mark.parametrize(
        ("count", "share", "trained_on", "held_out"),
        [
            (1000, None, 900, 100),  # a tenth
            (100, None, 80, 20),  # of fewer than two hundred: twenty
            (60, None, 42, 18),  # but no more than three tenths
            (20, None, 20, 20),  # three tenths would be six: none is held out, all validate
            (20, 0.1, 18, 2),  # unless that was asked for
            (4, 0.1, 4, 4),  # and can be done
        ],
    )
    def test_what_is_held_out(
        self,
        monkeypatch: pytest.MonkeyPatch,
        count: int,
        share: float | None,
        trained_on: int,
        held_out: int,
    ) -> None:
        seen = {}

        def look(dataset: mlnt.Dataset, **settings: object) -> None:
            seen.update(settings, train=len(dataset.train), validation=len(dataset.validation))
            raise mlnt.Stopped

        monkeypatch.setattr("mlnt.estimator.train", look)
        rows = np.arange(count, dtype=float)[:, None]
        with pytest.raises(mlnt.Stopped):
            quick(validation_share=share).fit(rows, np.arange(count) % 2)
        assert (seen["train"], seen["validation"]) == (trained_on, held_out)
        assert seen["batch_size"] == min(64, trained_on)


class TestBadInput:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"rho": 50}, r"rho must lie in \[0, 1\], got 50; did you mean 0.5\?"),
            ({"sets": 0}, "sets must lie in"),
            ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
            ({"model": "mpl"}, "did you mean 'mlp'"),
            ({"model": "small_conv"}, "small_conv. is for image data"),
            ({"preset": "tabel"}, "did you mean 'table'"),
            ({"device": "gpu"}, "device"),
            ({"model": nn.Linear(4, 7)}, "logits for 3 classes"),
        ],
    )
    def test_settings(self, irises: tuple, settings: dict, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            quick(**settings).fit(*irises)
        assert len(str(caught.value).splitlines()) == 1

    def test_data(self, irises: tuple) -> None:
        rows, numbers = irises
        with pytest.raises(InputError, match="one class only"):
            quick().fit(rows, np.ones(150))
        with pytest.raises(InputError, match="labels must be of one type, got int and str"):
            quick().fit(rows, np.array([1, "a", 2] * 50, dtype=object))
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            quick().fit(rows, rows[:, 0])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            quick().fit(rows, numbers[:-1])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            quick().fit(rows, np.array([], dtype=object))
        with pytest.raises(NotFittedError):
            quick().predict(rows)
