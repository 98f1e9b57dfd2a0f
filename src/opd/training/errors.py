"""Errors of the trainer that another attempt cannot mend."""


class Unfit(ValueError):
    """The models of the spec cannot be distilled exactly: different tokens, or a head that is more than a product.

    The run is marked fatal, so that no retry spends a cluster on it.
    """
