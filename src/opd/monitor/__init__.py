"""Faults that a run survives without an error, found in its rows of metrics: name, since which step, where to look."""
