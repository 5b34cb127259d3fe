"""Settings: one place, checked."""

import dataclasses

import numpy as np
import pytest

import mlnt
from mlnt.config import PRESETS, Settings, make_settings


def test_defaults_are_the_papers_for_cifar10() -> None:
    settings = make_settings("cifar10")
    assert (settings.sets, settings.rho, settings.neighbours) == (10, 0.5, 10)
    assert (settings.alpha, settings.eta, settings.lr) == (0.2, 0.4, 0.2)
    assert (settings.momentum, settings.weight_decay) == (0.9, 1e-4)
    assert (settings.epochs, settings.batch_size, settings.iterations) == (120, 128, 3)
    assert settings.fall_at * 120 == pytest.approx(80)
    assert settings.warmup * 120 == pytest.approx(20)
    assert (settings.gamma_early, settings.gamma, settings.lam) == (0.99, 0.999, 0.5)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset: str) -> None:
    assert isinstance(make_settings(preset), Settings)


def test_every_setting_has_a_meaning_and_a_group() -> None:
    for field in dataclasses.fields(Settings):
        assert field.metadata["meaning"]
        assert field.metadata["group"]


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"tau": "0.3"}, "tau", 0.3),
        ({"tau": "auto"}, "tau", "auto"),
        ({"epochs": "7"}, "epochs", 7),
        ({"epochs": 7.0}, "epochs", 7),
        ({"lr": 1}, "lr", 1.0),
        ({"flip": "yes"}, "flip", True),
        ({"flip": 0}, "flip", False),
        ({"flip": np.True_}, "flip", True),
        ({"epochs": np.int64(7)}, "epochs", 7),
    ],
)
def test_values_become_the_type_of_their_setting(given: dict, name: str, value: object) -> None:
    got = getattr(make_settings(**given), name)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rho": 50}, r"rho must lie in \[0, 1\], got 50; did you mean 0.5\?"),
        ({"epochs": 0}, r"epochs must lie in \[1, ∞\), got 0"),
        ({"epochs": 2.5}, "epochs must be a whole number, got 2.5"),
        ({"epochs": "many"}, "epochs must be a whole number, got 'many'"),
        ({"epochs": True}, "epochs must be a whole number, got True"),
        ({"lr": float("nan")}, "lr must lie in"),
        ({"lr": float("inf")}, "lr must lie in"),
        (
            {"tau": "atuo"},
            "tau must be a number or one of auto, otsu, got 'atuo'; did you mean 'auto'",
        ),
        ({"tau": 2}, r"tau must lie in \[0, 1\], got 2$"),
        ({"tau": 40}, r"tau must lie in \[0, 1\], got 40; did you mean 0.4\?"),
        ({"method": "mltn"}, "did you mean 'mlnt'"),
        ({"flip": "maybe"}, "flip must be true or false"),
        ({"epocs": 3}, "unknown setting 'epocs'; did you mean 'epochs'"),
        ({"preset": "cifar"}, "unknown preset 'cifar'; did you mean 'cifar10'"),
    ],
)
def test_mistakes(given: dict, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        make_settings(**given)
