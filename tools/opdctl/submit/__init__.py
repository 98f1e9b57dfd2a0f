"""Submission of experiments: the meaning of a name (start, resume, taken), then rendering, trying and installing."""
