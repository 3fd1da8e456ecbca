"""torch.optim.lr_scheduler with learning rates that are the same on every machine (SPEC.md, "Learning rates").

torch's schedulers take cosines and powers from the system's math library, whose last bits differ between systems. The
classes below have torch's arguments and `state_dict`, and compute these in decimal arithmetic of 40 digits. The others
only add, multiply and divide, and are torch's own: LambdaLR and MultiplicativeLR as far as the function given does.
They take torch's optimizers and this library's.
"""

from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]

_PI = Decimal("3.14159265358979323846264338327950288419716939937510582")
_CONTEXT = Context(prec=40, rounding=ROUND_HALF_EVEN)


def cospi(x: float | Fraction) -> float:
    """RN64(cos(pi * x)), by the series of the sine or cosine of an angle of at most pi / 4."""
    turn = abs(Fraction(x)) % 2
    turn = min(turn, 2 - turn)
    sign = 1
    if turn > Fraction(1, 2):
        turn, sign = 1 - turn, -1
    sine = turn > Fraction(1, 4)
    if sine:
        turn = Fraction(1, 2) - turn
    with localcontext(_CONTEXT):
        angle = _PI * turn.numerator / turn.denominator
        term = angle if sine else Decimal(1)
        total, k = Decimal(0), 2 if sine else 1
        while abs(term) > Decimal("1e-45"):
            total += term
            term = -term * angle * angle / (k * (k + 1))
            k += 2
    return sign * float(total) + 0.0  # no zero is negative


def power(x: float, exponent: float) -> float:
    """RN64(x ** exponent) for x >= 0, up to an error of one unit of the 40th digit before."""
    if x == 0:
        return 1.0 if exponent == 0 else 0.0
    with localcontext(_CONTEXT):
        return float(Decimal(x) ** Decimal(exponent))


class _ClosedForm(LRScheduler):
    """A scheduler whose rate is a function of the step's number and the initial rate alone."""

    def get_lr(self) -> list[Any]:
        return self._get_closed_form_lr()

    def _get_closed_form_lr(self) -> list[Any]:
        share = self._share()
        return [self._between(float(base), share) for base in self.base_lrs]

    def _share(self) -> float:
        raise NotImplementedError

    def _between(self, base: float, share: float) -> float:
        return base * share


class _Cosine(_ClosedForm):
    eta_min: float

    def _between(self, base: float, share: float) -> float:
        return base * share + self.eta_min * (1 - share)


class CosineAnnealingLR(_Cosine, torch.optim.lr_scheduler.CosineAnnealingLR):
    """torch.optim.lr_scheduler.CosineAnnealingLR in closed form: base * w + eta_min * (1 - w), w = (1 + c) / 2,
    c = cos(pi * last_epoch / T_max). A rate set by hand in between is not continued from."""

    def _share(self) -> float:
        return (1 + cospi(Fraction(self.last_epoch) / Fraction(self.T_max))) / 2


class CosineAnnealingWarmRestarts(_Cosine, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts):
    """torch.optim.lr_scheduler.CosineAnnealingWarmRestarts: as `CosineAnnealingLR` with c = cos(pi * T_cur / T_i).

    `step` takes an epoch only where T_mult is 1: torch finds the period of another one by a logarithm.
    """

    def _share(self) -> float:
        return (1 + cospi(Fraction(self.T_cur) / Fraction(self.T_i))) / 2

    def step(self, epoch: Any = None) -> None:
        """The next step, or that of `epoch`. Raises NotImplementedError for an epoch where T_mult is not 1."""
        if epoch is not None and self.T_mult != 1:
            raise NotImplementedError("epoch: torch finds its period by the system's logarithm; call step() without it")
        super().step(epoch)


class MultiStepLR(_ClosedForm, torch.optim.lr_scheduler.MultiStepLR):
    """torch.optim.lr_scheduler.MultiStepLR: base, multiplied by gamma once for each milestone passed."""

    def _get_closed_form_lr(self) -> list[Any]:
        passed = sum(count for milestone, count in self.milestones.items() if milestone <= self.last_epoch)
        rates = []
        for base in self.base_lrs:
            rate = float(base)
            for _ in range(passed):
                rate *= self.gamma
            rates.append(rate)
        return rates


class PolynomialLR(_ClosedForm, torch.optim.lr_scheduler.PolynomialLR):
    """torch.optim.lr_scheduler.PolynomialLR in closed form: base * (1 - min(last_epoch, total_iters) / total_iters) **
    power."""

    def _share(self) -> float:
        return power(1 - min(self.last_epoch, self.total_iters) / self.total_iters, self.power)


class OneCycleLR(torch.optim.lr_scheduler.OneCycleLR):
    """torch.optim.lr_scheduler.OneCycleLR, its cosine: end * (1 - w) + start * w, w = (1 + cos(pi * pct)) / 2."""

    @staticmethod
    def _annealing_cos(start: float, end: float, pct: float) -> float:
        share = (1 + cospi(pct)) / 2
        return start * share + end * (1 - share)
