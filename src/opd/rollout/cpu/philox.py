"""Philox4x32-10: random numbers as a pure function of (seed, position), so that no draw depends on another.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_ROUNDS = 10


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The block function.

    Args:
        counter: [4, N] uint64 holding 32-bit words.
        key: [2, N] uint64 holding 32-bit words.

    Returns:
        [4, N] uint64 holding 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # 32 x 32 bits fit in 64
        c0, c1, c2, c3 = (
            (product1 >> _WORD) ^ c1 ^ k0,
            product1 & _LOW,
            (product0 >> _WORD) ^ c3 ^ k1,
            product0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, position), 53 random bits each.

    Args:
        seeds: [N] uint64, the key.
        positions: [N] uint64, the counter.

    Returns:
        [N] float64.
    """
    zeros = np.zeros_like(positions)
    words = philox4x32(
        np.stack([positions & _LOW, positions >> _WORD, zeros, zeros]), np.stack([seeds & _LOW, seeds >> _WORD])
    )
    bits: NDArray[np.uint64] = (words[0] << _WORD | words[1]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
