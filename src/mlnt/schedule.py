"""How the rates rise and fall over an iteration, and what changes from one to the next."""

from dataclasses import replace

from mlnt.config import Settings
from mlnt.methods.base import Rates


def rates_at(progress: float, settings: Settings, iteration: int) -> Rates:
    """The rates at a share of an iteration's steps in [0, 1).

    lr and eta fall at `fall_at`: lr to a tenth (step), or both linearly to zero (linear).
    eta ramps up linearly during `warmup` of the first iteration alone. gamma is `gamma_early`
    during warmup of each, which begins with a fresh network (of Clothing1M the paper says so for
    the first alone). lam rises linearly from 0 over the whole iteration.
    """
    in_warmup = progress < settings.warmup
    ramp = progress / settings.warmup if in_warmup and iteration <= 1 else 1.0
    fallen = progress >= settings.fall_at
    lr_share, eta_share = 1.0, ramp
    if settings.fall == "step" and fallen:
        lr_share = 0.1
    elif settings.fall == "linear" and fallen:
        lr_share = (1 - progress) / (1 - settings.fall_at)
        eta_share = ramp * lr_share
    return Rates(
        lr=settings.lr * lr_share,
        eta=settings.eta * eta_share,
        gamma=settings.gamma_early if in_warmup else settings.gamma,
        lam=settings.lam * progress,
    )


def led_settings(settings: Settings) -> Settings:
    """The settings of an iteration whose labels a mentor has filtered.

    What it learns from is the same few labels again and again, and some of the wrong ones are
    among them: it takes more to keep it from learning those by heart.
    """
    decay = settings.led_weight_decay
    return settings if isinstance(decay, str) else replace(settings, weight_decay=decay)
