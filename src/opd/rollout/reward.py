"""The run's reward function: checked before there is an answer, then called for each answer in the rollout's process."""

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.reward_score import default_compute_score

from opd.errors import UnusableInput
from opd.rewards import check_function

_SECTION = "reward.custom_reward_function"
_OURS = "pkg://opd.rewards"


def reward_function(config: DictConfig) -> str:
    """Return the name under which `opd.rewards` knows it; empty for one that verl's own keys name."""
    return str(OmegaConf.select(config, f"{_SECTION}.reward_kwargs.function") or "")


def check_reward(config: DictConfig) -> None:
    """Raise UnusableInput if our reward entry could not score any answer: not there, no import, other arguments."""
    function = reward_function(config)
    if not function or OmegaConf.select(config, f"{_SECTION}.path") != _OURS:
        return
    options = dict(OmegaConf.select(config, f"{_SECTION}.reward_kwargs") or {})
    for ours in ("function", "timeout_s"):
        options.pop(ours, None)
    try:
        check_function(function, **options)
    except (ImportError, TypeError, ValueError) as error:
        raise UnusableInput("reward.function", f"{function} cannot score: {error}") from error


class Scorer:
    """The reward function as verl's reward workers call it, without their processes and padded batches."""

    def __init__(self, config: DictConfig) -> None:
        self._function = get_custom_reward_fn(config) or default_compute_score

    async def score(self, text: str, prompt: Mapping[str, Any], extra_info: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `score` of an answer and the function's further values."""
        arguments = {
            "data_source": prompt["data_source"],
            "solution_str": text,
            "ground_truth": prompt["reward_model"]["ground_truth"],
            "extra_info": {**(prompt.get("extra_info") or {}), **extra_info},
        }
        if inspect.iscoroutinefunction(self._function):
            found = await self._function(**arguments)
        else:
            found = await asyncio.to_thread(self._function, **arguments)
        return found if isinstance(found, dict) else {"score": found, "acc": found}
