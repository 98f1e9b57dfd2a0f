"""Weights of problems by pass rate, against cases computed by hand."""

import pytest

from opd.experiment.algorithm import ProblemImportance
from opd.weights.problems import weights_of_problems

RATES = [0.0, 0.25, 0.5, 1.0]


def weights(rates: list[float], name: str, *, num_samples: int = 4, **keys: float) -> list[float]:
    problems = ProblemImportance.model_construct(weights=name, **keys)
    return weights_of_problems(rates, problems, num_samples=num_samples).tolist()


@pytest.mark.parametrize(
    ("name", "rates", "keys", "expected"),
    [
        # p (1 - p): 0, 3/16, 4/16, 0, whose mean is 7/64.
        ("competence", RATES, {}, [0, 12 / 7, 16 / 7, 0]),
        # p (1 - p) ** 2: 9/64 and 8/64; mean 17/256.
        ("competence", RATES, {"beta": 2.0}, [0, 36 / 17, 32 / 17, 0]),
        ("hard_filter", [0.0, 0.125, 0.2, 0.5, 0.8, 0.875, 1.0], {}, [0, 0, 7 / 3, 7 / 3, 7 / 3, 0, 0]),
        # 0 and 1 do not count. Mean 1/2, variance 1/32: s = 8 - 1 = 7, so both exponents are 2.5.
        (
            "moment_matched",
            [0.0, 1.0, 0.25, 0.75, 0.5, 0.5],
            {},
            [0, 0, *(6 * each / (2 * 3**2.5 + 2 * 4**2.5) for each in (3**2.5, 3**2.5, 4**2.5, 4**2.5))],
        ),
    ],
)
def test_weights_have_a_mean_of_1_over_the_data_set(name, rates, keys, expected):
    assert weights(rates, name, **keys) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "rates", "words"),
    [
        ("competence", [0.0, 1.0], "no weight is above 0 among 2 problems"),
        ("competence", [0.5, 50.0], "not a percentage"),
        ("competence", [0.5, float("nan")], "between 0 and 1"),
        ("moment_matched", [0.0, 1.0, 0.5], "1 problems are between"),
        ("moment_matched", [0.01, 0.99, 0.01, 0.99], "negative exponent"),
        ("nonsense", RATES, "use one of competence"),
        (f"{__name__}:too_few", RATES, "as many finite numbers"),
    ],
)
def test_rates_and_weights_that_mean_nothing_are_refused(name, rates, words):
    with pytest.raises(ValueError, match=words):
        weights(rates, name, num_samples=100)


def hardest_half(rates, problems, num_samples):
    """Weight of a user's own."""
    return (rates <= rates.median()).double()


def too_few(rates, problems, num_samples):
    """Weights of all problems but the first."""
    return rates[1:]


def test_a_weight_of_ones_own_is_a_function_named_in_the_experiment():
    assert weights(RATES, f"{__name__}:hardest_half") == [2.0, 2.0, 0.0, 0.0]
