"""Prices of one episode: a function of (entry, episode seed) laid over the database, so that no price can be learnt."""

import hashlib

# Whatever the stored price, an episode's is drawn from its kind's whole range: knowing the database does not help.
PRICE_RANGES: dict[str, tuple[int, int]] = {
    "hotel": (100, 999),
    "restaurant": (20, 299),
    "attraction": (10, 199),
    "train": (50, 899),
    "flight": (200, 1999),
}
"""Lowest and highest price by kind, both included; the generator draws the stored prices from the same ranges."""


def episode_price(stored: int, kind: str, entry_id: int, seed: int | None) -> int:
    """The price of an entry in an episode.

    Args:
        stored: the price in the database, which is the answer where there is no episode seed.
        kind: a key of `PRICE_RANGES`.
        entry_id: the entry's id in its table; the same in every language.
        seed: the episode's; None: no overlay.
    """
    if seed is None:
        return stored
    low, high = PRICE_RANGES[kind]
    digest = hashlib.blake2b(f"{seed}:{kind}:{entry_id}".encode(), digest_size=8).digest()
    return low + int.from_bytes(digest) % (high - low + 1)
