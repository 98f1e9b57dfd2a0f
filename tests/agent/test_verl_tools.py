"""verl's own tools and tool-call syntaxes under our protocols: state kept, calls answered, failures read by the model."""

import asyncio

import pytest
from tests.agent.talk import END, SCHEMA, TOKENIZER, Tools, ids_of, spans, talk
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from opd.agent.environments import tool_schemas
from opd.agent.parsing import HermesParser
from opd.agent.verl_tools import VerlTools, call_parser

SCHEMAS = tool_schemas("travel")


class Counter(BaseTool):
    """Counts the calls of one conversation."""

    def __init__(self):
        schema = {"type": "function", "function": {"name": "counter", "description": "Counts."}}
        super().__init__({}, OpenAIFunctionToolSchema.model_validate(schema))
        self.counts: dict[str, int] = {}

    async def create(self, instance_id=None, **kwargs):
        name, response = await super().create(instance_id)
        self.counts[name] = kwargs["create_kwargs"].get("start", 0)
        return name, response

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters.get("raise"):
            raise RuntimeError("broken")
        if parameters.get("wait"):
            await asyncio.sleep(60)
        self.counts[instance_id] += 1
        return ToolResponse(text=str(self.counts[instance_id])), 0.0, {}

    async def release(self, instance_id, **kwargs):
        del self.counts[instance_id]


def test_an_instance_lives_as_long_as_its_conversation():
    counter = Counter()

    async def conversation(start: int) -> list[str]:
        tools = VerlTools({"counter": counter}, {"counter": {"create_kwargs": {"start": start}}}, 5.0)
        texts = [(await tools.call("counter", {})).text for _ in range(3)]
        await tools.release()
        return texts

    async def both():
        return await asyncio.gather(conversation(0), conversation(10))

    assert asyncio.run(both()) == [["1", "2", "3"], ["11", "12", "13"]]
    assert counter.counts == {}


def test_a_tool_that_raises_or_waits_for_ever_is_an_error_that_the_model_reads():
    async def run():
        tools = VerlTools({"counter": Counter()}, {}, 0.05)
        return await tools.call("counter", {"raise": True}), await tools.call("counter", {"wait": True})

    raised, waited = asyncio.run(run())
    assert raised.error == raised.text == "Error: counter failed: broken"
    assert waited.error == "Error: counter did not answer within 0.05 s"
    assert waited.seconds >= 0.05


def parse(name: str, text: str):
    parser = call_parser(name, TOKENIZER, SCHEMAS)
    return asyncio.run(parser.parse(text, ids_of(text)))


def test_a_call_that_verls_parser_drops_is_answered():
    good = "<tool_call>\n<function=get_price>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call>"
    calls = parse("qwen3_coder", good + "<tool_call>nothing</tool_call>")
    assert [call.problem for call in calls] == ["", "a call is not in the format qwen3_coder"]


def test_the_default_syntax_is_ours_and_an_unknown_one_is_refused_with_the_known():
    assert isinstance(call_parser("hermes", TOKENIZER, SCHEMAS), HermesParser)
    with pytest.raises(ValueError, match=r"agent.tool_format='xml': must be one of .*hermes.*qwen3_coder"):
        call_parser("xml", TOKENIZER, SCHEMAS)


JSON = '{"city": "静州"}'
CALLS = {
    "hermes": '<tool_call>\n{"name": "price", "arguments": ' + JSON + "}\n</tool_call>",
    "qwen3_coder": "<tool_call>\n<function=price>\n<parameter=city>\n静州\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>price\n<arg_key>city</arg_key>\n<arg_value>静州</arg_value>\n</tool_call>",
    "seed": "<seed:tool_call>\n<function=price>\n<parameter=city>静州</parameter>\n</function>\n</seed:tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="price">\n<parameter name="city">静州</parameter>\n</invoke>\n</minimax:tool_call>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.price:0<|tool_call_argument_begin|>"
    + JSON
    + "<|tool_call_end|><|tool_calls_section_end|>",
    "gpt-oss": "<|start|>assistant<|channel|>commentary to=functions.price <|constrain|>json<|message|>" + JSON + "<|call|>",
    "deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="price">\n<｜DSML｜parameter name="city" string="true">静州'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
    "gemma4": '<|tool_call>call:price{city:<|"|>静州<|"|>}<tool_call|>',
}  # fmt: skip


def test_each_syntax_of_verls_has_a_call_here():
    assert set(CALLS) == set(ToolParser._registry)


@pytest.mark.parametrize("name", CALLS)
def test_a_conversation_in_each_syntax_asks_the_tool_and_trains_the_models_tokens_alone(name):
    tools = Tools()
    turns = [CALLS[name] + END, "It is 42." + END]
    held = talk(turns, tools, parser=call_parser(name, TOKENIZER, [SCHEMA]))
    assert tools.asked == [("price", {"city": "静州"})]
    assert [text for trained, text in spans(held) if trained] == turns
    (said,) = [text for trained, text in spans(held) if not trained]
    assert "\n42\n" in said
