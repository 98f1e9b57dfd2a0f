"""Which chat templates can carry tool conversations exactly, and which are refused before a run starts."""

from __future__ import annotations

import copy
import re

import pytest
from tests.agent.talk import SCHEMA, TOKENIZER, ids_of, text_of

from opd.agent.conversation import Conversation, UnfitTemplate

END = TOKENIZER.eos_token_id
HEAD = "{% for m in messages %}{% if m.role == 'assistant' %}"
CALLS = "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %}"
TAIL = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURN = "<|im_start|>assistant\n{{ m.content }}" + CALLS + "<|im_end|>\n"
OTHER = "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
# Past turns lose their thought, as in Qwen3; a header may begin with an empty one (thinking off).
FORGETS_THOUGHTS = (
    HEAD + "<|im_start|>assistant\n{% if loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}" + CALLS
    + "<|im_end|>\n" + OTHER + "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)  # fmt: skip


def conversation(template: str | None = None, **kwargs) -> Conversation:
    tokenizer = copy.deepcopy(TOKENIZER)
    if template is not None:
        tokenizer.chat_template = template
    return Conversation(tokenizer, tools=[SCHEMA], template_kwargs=kwargs)


@pytest.mark.parametrize(
    ("template", "kwargs"),
    [
        (None, {}),
        (None, {"enable_thinking": False}),
        (HEAD + TURN + OTHER + TAIL, {}),
        (FORGETS_THOUGHTS, {}),
        (FORGETS_THOUGHTS, {"enable_thinking": False}),
        (HEAD + TURN.replace("{{ m.content }}", "") + OTHER + TAIL, {}),
    ],
    ids=["hermes", "hermes without thinking", "plain", "forgets thoughts", "opens with an empty thought", "calls only"],
)
def test_templates_that_write_turns_the_same_way_whatever_follows_are_taken(template, kwargs):
    conversation(template, **kwargs).verify([END])


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (HEAD + TURN + "{% elif m.role == 'user' %}{{ m.content }}{% endif %}" + TAIL, "is not in the text it writes"),
        (HEAD + "<|im_start|>assistant\n{{ m.content }}\n" + OTHER + TAIL, "|the text it writes|once more turns follow"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content if m.role != 'assistant' }}{% endfor %}", "writes neither"),
        (HEAD + "{{ raise_exception('no tools here') }}" + OTHER + TAIL, "it fails: no tools here"),
        (
            HEAD + TURN + "{% else %}<|im_start|>{{ m.role }}{{ messages | length }}\n{{ m.content }}<|im_end|>\n{% endif %}" + TAIL,
            "once more turns follow",
        ),
        (HEAD + TURN + "{% else %}{{ m.role }}{{ m.content | upper }}{% endif %}" + TAIL, "is not in the text it writes"),
    ],
    ids=["drops replies", "no end of turn", "no assistant", "raises", "counts messages", "changes replies"],
)  # fmt: skip
def test_templates_that_cannot_carry_tools_exactly_are_refused_with_the_reason(template, why):
    with pytest.raises(UnfitTemplate, match=re.compile(why) if "|" in why else re.escape(why)) as error:
        conversation(template).verify([END])
    assert "agent.enable_tools=false" in str(error.value)


def test_an_end_of_turn_that_is_not_one_token_is_refused():
    with pytest.raises(UnfitTemplate, match="is not one token"):
        conversation().verify([ids_of("静")[0] if len(ids_of("静")) > 1 else 200])


def test_a_turn_that_ended_with_a_stop_token_goes_on_behind_it():
    # A format whose calls end a turn (Gemma's): the template's own end of turn is then still to be written.
    closing = ids_of("</tool_call>")
    assert len(closing) == 1
    text = text_of(conversation().after_turn(["42"], last_token=closing[0]))
    assert text.startswith("<|im_end|>\n<|im_start|>user\n<tool_response>\n42")


def test_the_models_own_call_ids_stand_in_the_replies():
    template = (
        HEAD
        + TURN
        + "{% elif m.role == 'tool' %}[{{ m.tool_call_id }}]{{ m.content }}{% else %}{{ m.content }}{% endif %}"
        + TAIL
    )
    ids = conversation(template).after_turn(["a", "b"], last_token=END, call_ids=["functions.f:0", None])
    assert "[functions.f:0]a" in text_of(ids)
    assert "b" in text_of(ids)


def test_only_control_tokens_and_markup_are_taken_apart():
    text = 'Tea <|im_end|> <tool_call> {"price": 4} <b> a < b'
    assert conversation().clean(text) == ('Tea < |im_end|> < tool_call> {"price": 4} <b> a < b', 2)
