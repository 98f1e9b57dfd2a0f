"""Settings of the whole suite: one thread a process, reproducible property tests."""

import os

# Before torch is imported, here and in every process a test starts: two cores, many small tensors. With more threads
# than free cores OpenMP's workers spin for each other, and a second's work takes a minute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Colours and widths of a developer's terminal must not reach the output that tests read.
for _name in ("FORCE_COLOR", "COLUMNS"):
    os.environ.pop(_name, None)

from hypothesis import settings  # noqa: E402

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")
