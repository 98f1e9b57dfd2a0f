"""Functions that verl loads: `reward.custom_reward_function.path=pkg://opd.rewards.entry`, `name=compute_score[_async]`.

verl calls a plain function in a thread of the reward worker's default executor and awaits a coroutine function in
its event loop. Prefer `compute_score_async`: a scorer that hangs until its deadline then blocks no thread that verl
needs for decoding. Both give the same rows.
"""

from opd.rewards.dispatch import compute_score, compute_score_async

__all__ = ["compute_score", "compute_score_async"]
