"""The benchmark's product search: Okapi BM25 over a product's words (Robertson et al., TREC-3, 1994), to its very numbers."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

FIELDS = (
    "brand",
    "color",
    "size",
    "thickness",
    "elasticity",
    "version_type",
    "collar_type",
    "suitable_season",
    "target_demographic",
    "name",
)
"""Of a product, in the order of its text; words are what spaces part, in lower case."""
MIN_SCORE = 2.0
"""What a product must exceed to be found."""
_K1, _B, _FLOOR = 1.5, 0.75, 0.25
"""Saturation, length normalisation, and the share of the mean weight that a word of most products has: those of the
library `rank_bm25` (BM25Okapi), which the benchmark calls."""


class Index:
    """The words of a case's products.

    Args:
        products: in the order in which equal scores are told.
    """

    def __init__(self, products: Sequence[Mapping[str, Any]]) -> None:
        self._texts = [Counter(_words(" ".join(_text(product, field) for field in FIELDS))) for product in products]
        self._lengths = [text.total() for text in self._texts]
        self._mean_length = sum(self._lengths) / len(products) if products else 0.0
        self._weights = _weights(self._texts)

    def found(self, query: str) -> list[int]:
        """Positions of the products that the query finds, best first."""
        scores = [0.0] * len(self._texts)
        for word in _words(query):
            weight = self._weights.get(word, 0.0)
            for i, (text, length) in enumerate(zip(self._texts, self._lengths, strict=True)):
                count = text[word]
                if count:  # the order of the operations is the library's, so that scores are equal to the last bit
                    norm = _K1 * (1 - _B + _B * length / self._mean_length)
                    scores[i] += weight * (count * (_K1 + 1) / (count + norm))
        return sorted((i for i, score in enumerate(scores) if score > MIN_SCORE), key=lambda i: -scores[i])


def _words(text: str) -> list[str]:
    return text.lower().split()


def _text(product: Mapping[str, Any], field: str) -> str:
    value = product.get(field, "")
    return value if isinstance(value, str) else ""


def _weights(texts: Sequence[Counter[str]]) -> dict[str, float]:
    """Inverse document frequency by word; a word of more than half of the texts, whose own would be negative, has a share of
    the mean.
    """
    num_with = Counter(word for text in texts for word in text)
    weights = {word: math.log(len(texts) - count + 0.5) - math.log(count + 0.5) for word, count in num_with.items()}
    total = 0.0
    for weight in weights.values():
        total += weight
    floor = _FLOOR * total / len(weights) if weights else 0.0
    return {word: floor if weight < 0 else weight for word, weight in weights.items()}
