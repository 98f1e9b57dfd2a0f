"""The run's reward function: its name, and whether it could score at all, found before there is an answer."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from opd.errors import UnusableInput
from opd.rewards import check_function

_SECTION = "reward.custom_reward_function"
_OUR_ENTRY = "pkg://opd.rewards.entry"


def reward_function(config: DictConfig) -> str:
    """The name under which `opd.rewards` knows it; empty for one that verl loads by itself."""
    return str(OmegaConf.select(config, f"{_SECTION}.reward_kwargs.function") or "")


def check_reward(config: DictConfig) -> None:
    """Raises UnusableInput if our reward entry could not score any answer: not there, no import, other arguments."""
    function = reward_function(config)
    if not function or OmegaConf.select(config, f"{_SECTION}.path") != _OUR_ENTRY:
        return
    options = dict(OmegaConf.select(config, f"{_SECTION}.reward_kwargs") or {})
    for ours in ("function", "timeout_s", "num_workers"):
        options.pop(ours, None)
    try:
        check_function(function, **options)
    except (ImportError, TypeError, ValueError) as error:
        raise UnusableInput(f"reward.function: {function} cannot score: {error}") from error
