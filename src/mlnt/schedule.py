"""How the rates rise and fall over an iteration, and what changes from one to the next."""

from dataclasses import replace

from mlnt.config import Settings
from mlnt.methods.base import Rates

# Steps. Statistics of batch norm, which come of the teacher's own answers where no squares are
# blanked, remember about ten: of weights that changed faster they would be those of others.
LEAST_REMEMBERED = 20
# These train a teacher beside the student, in iterations led by mentors.
ITERATED = ("mean_teacher", "iterative", "mlnt")
# Settings, and those that take their place where a mentor has filtered the labels.
LED = {"lr": "led_lr", "weight_decay": "led_weight_decay"}


def rates_at(
    step: int, steps: int, settings: Settings, iteration: int, is_led: bool = False
) -> Rates:
    """The rates at one of an iteration's steps, counted from 0.

    lr and eta fall at `fall_at`: lr to a tenth (step), or both linearly to zero (linear).
    eta ramps up linearly during `warmup` of the first iteration alone. gamma is `gamma_early`
    during warmup of each, which begins with a fresh network (of Clothing1M the paper says so for
    the first alone). lam rises linearly from 0 over the whole iteration.

    `is_led`: a mentor has filtered the labels, see `teacher_settles`.
    """
    progress = step / steps
    in_warmup = progress < settings.warmup
    ramp = progress / settings.warmup if in_warmup and iteration <= 1 else 1.0
    fallen = progress >= settings.fall_at
    lr_share, eta_share = 1.0, ramp
    gamma = settings.gamma_early if in_warmup else settings.gamma
    if settings.fall == "step" and fallen:
        lr_share = 0.1
    elif settings.fall == "linear" and fallen:
        lr_share = (1 - progress) / (1 - settings.fall_at)
        eta_share = ramp * lr_share
        if settings.teacher_settles and is_led:
            gamma = min(gamma, settled_gamma(steps - step))
    return Rates(
        lr=settings.lr * lr_share,
        eta=settings.eta * eta_share,
        gamma=gamma,
        lam=settings.lam * progress,
    )


def settled_gamma(steps_left: int) -> float:
    """That of a teacher which remembers no more steps than are left, and ends at the student.

    While rates fall to zero the student still gains, and a teacher that remembers how it was before
    lags behind. It may be better where the labels are mostly wrong, for the student then learns
    them by heart in these very steps: only led iterations settle.
    """
    return 1 - 1 / max(steps_left, LEAST_REMEMBERED)


def last_settings(settings: Settings) -> Settings:
    """The settings of what a method ends with."""
    epochs = settings.last_epochs
    return settings if isinstance(epochs, str) else replace(settings, epochs=epochs)


def has_last(settings: Settings) -> bool:
    """Whether anything comes last, after something else: not where one iteration is all."""
    if settings.method in ITERATED:
        return settings.iterations > 1
    return settings.method != "cross_entropy"


def led_settings(settings: Settings) -> Settings:
    """The settings of an iteration whose labels a mentor has filtered.

    What it learns from is the same few labels again and again, and some of the wrong ones are
    among them: it takes more weight decay to keep it from learning those by heart, and then a lower
    rate, or the network forgets as fast as it learns.
    """
    of_led = {name: getattr(settings, led) for name, led in LED.items()}
    return replace(settings, **{k: v for k, v in of_led.items() if not isinstance(v, str)})
