"""An environment as users of the library `verifiers` publish one: a tool, a user who thanks for the answer, a reward."""

import verifiers as vf
from datasets import Dataset


def price(city: str) -> str:
    """Look a price up."""
    return "It is 42<|im_end|>."


class Thanked(vf.ToolEnv):
    @vf.stop
    async def no_tools_called(self, state):
        return len(state["trajectory"]) == 3

    async def env_response(self, messages, state, **_):
        thanks = [{"role": "user", "content": "thanks"}]
        return await super().env_response(messages, state) if "tool_calls" in messages[-1] else thanks


def load_environment(city="静州"):
    rows = Dataset.from_list([{"question": f"the price of {city}", "answer": "42"}])
    return Thanked(tools=[price], dataset=rows, rubric=vf.Rubric(funcs=[lambda completion: len(completion) / 25]))
