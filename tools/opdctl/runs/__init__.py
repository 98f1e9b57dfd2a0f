"""Runs: finding them, their records, metrics, tables and comparison, and their end."""
