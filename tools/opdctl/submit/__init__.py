"""Sending experiments to a cluster: what a name means (start, resume, refuse), then rendering, trying and installing."""
