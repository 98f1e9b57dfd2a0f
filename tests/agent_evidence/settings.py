"""The environment's limits in the evidence: a question, one call, one answer, with room for a mistake or two."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from tests.minimal import MINIMAL

from opd.experiment import parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts

MAX_PROMPT_TOKENS = 128
MAX_RESPONSE_TOKENS = 192
MAX_ASSISTANT_TURNS = 3
MAX_REPLY_TOKENS = 64


def settings(database: Path, **agent: str) -> DictConfig:
    """As the evidence's experiment has them; `agent` are further keys of its section."""
    tree = MINIMAL["opd-agent"] | {
        "data": {"max_prompt_length": MAX_PROMPT_TOKENS, "max_response_length": MAX_RESPONSE_TOKENS},
        "agent": {
            "database_dir": str(database),
            "max_assistant_turns": MAX_ASSISTANT_TURNS,
            "max_tool_response_length": MAX_REPLY_TOKENS,
            "num_tool_processes": 2,
            **agent,
        },
    }
    ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="evidence", run_dir=""))
    return OmegaConf.create({KEY: ours.text(), "data": {}})
