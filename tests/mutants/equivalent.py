"""Drawn mutants that change nothing anybody could notice, each with the reason: `make mutants` counts them apart."""

EQUIVALENT: dict[str, str] = {}
