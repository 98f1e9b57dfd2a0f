"""Runs: finding them, their records, metrics, and comparison."""
