"""Scores of the benchmark: the form of a plan, the rules of the eight commonsense dimensions, the composite score."""
