"""One conversation's calls of the shopping tools, without processes."""

import json
from typing import Any

import pytest

from opd.agent.environments import load_environment
from opd.agent.tools import BadArguments, Changed, parse_arguments, render
from opd_envs.deepplanning.shopping.catalog import ShopDatabase

TOOLSET = "deepplanning-shopping-{}"


class Customer:
    """What calls answer, with the cart that the ones before left."""

    def __init__(self, database: ShopDatabase, case: str, language: str = "en") -> None:
        self.tools, self.view = load_environment(TOOLSET.format(language)).tools, database.in_case(case)
        self.state: str | None = None

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        tool = self.tools[name]
        reply = tool.run(self.view.with_state(self.state), parse_arguments(tool, json.dumps(arguments)))
        if isinstance(reply, Changed):
            reply, self.state = reply
        return json.loads(render(reply))

    def refusal(self, name: str, /, **arguments: Any) -> str:
        with pytest.raises(BadArguments) as caught:
            self(name, **arguments)
        return str(caught.value)
