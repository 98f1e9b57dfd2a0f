"""Evaluation: from sampled answers to mean@n, std@n, pass@k and maj@k with errors, a table, a file."""
