"""Content of messages that a chat template loses, repeats or garbles: the check rejects it with the way out, or notes it."""

from __future__ import annotations

import copy

import pytest
from tests.agent.talk import TOKENIZER

from opd.data.chat_template import UnfitTemplate, render
from opd.data.template_probe import THOUGHT, check_template, said_in

LOOP = "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{0}<|im_end|>\n{{% endfor %}}"
KEEPS = LOOP.format("{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}")
QWEN_LIKE = (
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}{{ m.content.split('</think>')[-1] if not loop.last else "
    "m.content }}<|im_end|>{% endif %}{% endfor %}"
)
WRITES_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + KEEPS
# As gpt-oss's, Qwen3-VL's and Cohere's: a system message is the first, or none.
FIRST_ALONE = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
SCHEMA = '[{"type": "function", "function": {"name": "f", "parameters": {}}}]'


def talk(roles: str) -> list[dict[str, str]]:
    """Return messages of roles by their first letters."""
    return [{"role": {"s": "system", "u": "user", "a": "assistant"}[role], "content": "x"} for role in roles]


def check(template: str, *shapes: tuple[str, str], is_trained: bool = False) -> None:
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = template
    check_template(tokenizer, shapes, is_trained=is_trained, template={})


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_template_that_keeps_everything_passes(is_trained):
    shapes = [(role, "content") for role in ("system", "developer", "user", "assistant", "tool")]
    check(KEEPS, *shapes, ("assistant", "tool_calls"), ("assistant", "weight"), is_trained=is_trained)


@pytest.mark.parametrize("tools", [None, SCHEMA, '[{"name": "f"}]'])
@pytest.mark.parametrize("roles", ["sua", "ssua", "usua", "suauasua"])
@pytest.mark.parametrize("template", [WRITES_TOOLS, FIRST_ALONE])
def test_tools_and_system_messages_are_asked_for_in_the_places_that_the_data_have(template, roles, tools):
    shapes = list(said_in(talk(roles), tools))
    words = {"the column tools": tools, "of role system after the first message, in the order ": roles.rindex("s")}
    lost = [said for said, is_there in words.items() if is_there and template == FIRST_ALONE]
    if not lost:
        check(template, *shapes, is_trained=True)
        return
    with pytest.raises(UnfitTemplate) as refused:
        check(template, *shapes, is_trained=True)
    assert [said for said in words if said in str(refused.value)] == lost


@pytest.mark.parametrize(
    ("template", "shape", "is_trained", "said"),
    [
        (QWEN_LIKE, ("developer", "content"), False, "the content of role developer is left out(.|\n)*use the role system"),
        (KEEPS, ("assistant", "reasoning_content"), True, "reasoning_content of role assistant is left out"),
        (LOOP.format("{{ m.content }}"), ("assistant", "tool_calls"), True, "tool_calls of role assistant is left out"),
        (LOOP.format("{{ m.content }}{{ m.tool_calls }}"), ("assistant", "tool_calls"), True, "as a Python object"),
        (LOOP.format("{{ m.content.split('</think>')[-1] }}"), ("assistant", THOUGHT), True, "with a thought .* left out"),
        (LOOP.format("{{ m.content }}{{ m.content }}"), ("user", "content"), False, "written more than once"),
        (LOOP.format(""), ("user", "content"), False, "left out(.|\n)*a template that writes it"),
        (LOOP.format("{{ raise_exception('no system') if m.role == 'system' }}"), ("system", "content"), False, "refused"),
    ],
)  # fmt: skip
def test_what_a_template_loses_is_named_with_the_way_out(template, shape, is_trained, said):
    with pytest.raises(UnfitTemplate, match=said):
        check(template, shape, is_trained=is_trained)


def test_thoughts_of_past_turns_that_a_template_leaves_out_on_purpose_are_noted(capsys):
    check(QWEN_LIKE, ("assistant", THOUGHT), ("assistant", "reasoning_content"))
    assert capsys.readouterr().out.count("note: ") == 2


@pytest.mark.parametrize("arguments", ['{"city": "a"}', {"city": "a"}])
@pytest.mark.parametrize("how", ["c.function.arguments | tojson", "'' + c.function.arguments"], ids=["object", "text"])
def test_arguments_are_written_once_whatever_form_data_and_template_have(how, arguments):
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.chat_template = (
        f"{{% for m in messages %}}{{% for c in m.tool_calls %}}{{{{ {how} }}}}{{% endfor %}}{{% endfor %}}"
    )
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert render(tokenizer, [{"role": "assistant", "content": None, "tool_calls": [call]}]) == '{"city": "a"}'
