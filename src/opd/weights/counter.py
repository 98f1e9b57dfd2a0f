"""Random numbers that depend on what they are for and not on how many were drawn before: a hash of a counter."""

import numpy as np
from numpy.typing import NDArray

_GAMMA, _MIX_1, _MIX_2 = (np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea, Flood 2014), a bijection of 64-bit numbers."""
    values = values + _GAMMA
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def _hashed(*keys: NDArray[np.int64]) -> NDArray[np.uint64]:
    out = np.zeros(1, dtype=np.uint64)
    for key in keys:
        out = _mixed(out ^ np.asarray(key, dtype=np.int64).view(np.uint64))
    return out


def step_seed(seed: int, step: int) -> int:
    """A seed for one step of a run, unrelated to its neighbours'."""
    return int(_hashed(np.array([seed]), np.array([step]))[0] >> np.uint64(1))


def uniform(seed: int, row: NDArray[np.int64], position: NDArray[np.int64]) -> NDArray[np.float64]:
    """[T] numbers in (0, 1), each a function of seed, row and position alone.

    Args:
        row, position: [T] int64.
    """
    return ((_hashed(np.array([seed]), row, position) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
