"""Learning rates: correctly rounded cosines, torch's values up to rounding, and schedules that resume."""

from fractions import Fraction
from typing import Any

import mpmath
import pytest
import torch

from repkernels import optim
from repkernels.optim import lr_scheduler


@pytest.mark.parametrize("period", [3, 7, 100, 9973])
def test_cosines_are_correctly_rounded(period: int) -> None:
    with mpmath.workprec(200):
        for n in range(0, 4 * period, max(1, period // 40)):
            assert lr_scheduler.cospi(Fraction(n, period)) == float(mpmath.cospi(mpmath.mpf(n) / period))
        for x in (1e-9, 0.3, 0.49999999999, 1.7):
            assert lr_scheduler.cospi(x) == float(mpmath.cospi(mpmath.mpf(x)))


def test_exact_cosines() -> None:
    found = [lr_scheduler.cospi(Fraction(*x)) for x in ((0, 1), (1, 3), (1, 2), (2, 3), (1, 1), (3, 2), (2, 1))]
    assert found == [1, 0.5, 0, -0.5, -1, 0, 1]
    assert str(lr_scheduler.cospi(1.5)) == "0.0"


SCHEDULES: dict[str, dict[str, Any]] = {
    "CosineAnnealingLR": {"T_max": 20, "eta_min": 0.01},
    "CosineAnnealingWarmRestarts": {"T_0": 5, "T_mult": 2},
    "MultiStepLR": {"milestones": [3, 7, 7], "gamma": 0.3},
    "OneCycleLR": {"max_lr": 0.5, "total_steps": 30},
    "PolynomialLR": {"total_iters": 10, "power": 0.9},
}


def rates(library: Any, name: str, stop: int | None = None) -> list[float]:
    """Of 25 steps; with `stop`, those after it are made by a schedule that resumed there."""

    def made() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3, momentum=0.9)
        return optimizer, getattr(library, name)(optimizer, **SCHEDULES[name])

    optimizer, schedule = made()
    found = []
    for i in range(25):
        if i == stop:
            states = optimizer.state_dict(), schedule.state_dict()
            optimizer, schedule = made()
            optimizer.load_state_dict(states[0])
            schedule.load_state_dict(states[1])
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_torchs_up_to_rounding(name: str) -> None:
    found = rates(lr_scheduler, name)
    assert found == pytest.approx(rates(torch.optim.lr_scheduler, name), rel=1e-14, abs=1e-16)
    assert rates(lr_scheduler, name, stop=11) == found


def test_the_ends_of_a_cosine_are_exact() -> None:
    found = rates(lr_scheduler, "CosineAnnealingLR")
    assert (found[0], found[20]) == (0.3, 0.01)


def test_an_epoch_whose_period_torch_finds_by_a_logarithm_is_refused() -> None:
    optimizer = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    schedule = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5, 2)
    with pytest.raises(NotImplementedError, match="epoch"):
        schedule.step(7)


def test_all_of_torchs_that_need_no_math_library_are_there() -> None:
    for name in lr_scheduler.__all__:
        assert issubclass(getattr(lr_scheduler, name), getattr(torch.optim.lr_scheduler, name))
