"""One answer scored as the rollout scores it."""

import asyncio
from typing import Any

from opd.rewards import compute_score_async
from opd.rewards.dispatch import RewardRow


def compute_score(*arguments: Any, **options: Any) -> RewardRow:
    """Score one answer and wait for it."""
    return asyncio.run(compute_score_async(*arguments, **options))
