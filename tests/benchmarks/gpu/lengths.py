"""Loaded into every verl process of `bench_step`: answers of log-normal length, drawn by data row and sample.

`VERL_USE_EXTERNAL_MODULES` names this module. A random model never ends an answer, so the benchmark says when it does.
"""

from __future__ import annotations

import math
import os
import random
import sys

from tests.e2e_cpu.probe import AfterImport

MEAN_TOKENS = "OPD_BENCH_MEAN_TOKENS"
SIGMA = 0.8  # of the logarithm: the longest of 128 answers is about six times as long as the mean


def length(mean: float, *place: int) -> int:
    """Tokens of one answer, the same in every run."""
    draw = random.Random(repr(place)).gauss(0.0, SIGMA)
    return max(1, round(mean * math.exp(draw - SIGMA**2 / 2)))


def _bound(module) -> None:
    original = module.RolloutWorker._trajectory

    async def trajectory(self, prompt, sample, partition):
        tokens = length(float(os.environ[MEAN_TOKENS]), int(prompt["global_steps"]), int(prompt["index"]), sample)
        return await original(self, prompt | {module.MAX_TOKENS: tokens}, sample, partition)

    module.RolloutWorker._trajectory = trajectory


if MEAN_TOKENS in os.environ:
    sys.meta_path.insert(0, AfterImport({"opd.rollout.worker": _bound}))
