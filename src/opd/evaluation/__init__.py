"""Evaluation: from sampled answers to mean@n, std@n, pass, best, worst and maj@k with errors, a table, a file."""
