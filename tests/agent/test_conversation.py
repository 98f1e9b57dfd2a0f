"""Chat templates that carry tool conversations exactly, and others, which the check rejects before a run starts."""

import copy
import re

import pytest
from tests.agent.talk import SCHEMA, TOKENIZER, ids_of, text_of

from opd.agent.conversation import Conversation
from opd.data.chat_template import UnfitTemplate
from opd.experiment import SpecError

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


# The structure of published templates, with this tokenizer's control tokens for theirs.
LLAMA_3 = (  # one call a turn, replies as JSON strings
    "{% for m in messages %}{% if not (m.role == 'tool' or 'tool_calls' in m) %}"
    "<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>"
    "{% elif 'tool_calls' in m %}{% if not m.tool_calls | length == 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    '<|im_start|>assistant\n\n{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}<|im_end|>"
    "{% else %}<|im_start|>ipython\n\n{% if m.content is mapping or m.content is iterable %}{{ m.content | tojson }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
DEEPSEEK_V3 = (  # arguments must be text: a mapping is no sum
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<user>' + m['content'] }}{% endif %}"
    "{% if m.role == 'assistant' and m['tool_calls'] %}{% for tool in m['tool_calls'] %}{{ '<assistant>' + tool['type'] + "
    "tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```<|im_end|>' }}{% endfor %}"
    "{% endif %}{% if m.role == 'tool' %}{{ '<output>' + m['content'] + '</output>' }}{% endif %}{% endfor %}"
)
DEEPSEEK_R1 = HEAD + TURN + OTHER + TAIL.replace("assistant\n", "assistant\n<think>\n")


def conversation(template: str | None = None, *, max_parallel_calls: int = 2, **kwargs) -> Conversation:
    tokenizer = copy.deepcopy(TOKENIZER)
    if template is not None:
        tokenizer.chat_template = template
    return Conversation(tokenizer, tools=[SCHEMA], template_kwargs=kwargs, max_parallel_calls=max_parallel_calls)


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


def test_a_template_that_takes_one_call_a_turn_carries_the_replies_to_calls_beyond_it():
    ids = conversation(LLAMA_3, max_parallel_calls=1).after_turn(['{"price": 42}', "Error: not run"], last_token=END)
    assert text_of(ids) == (
        '<|im_start|>ipython\n\n"{\\"price\\": 42}"<|im_end|><|im_start|>ipython\n\n"Error: not run"<|im_end|>'
        "<|im_start|>assistant\n\n"
    )


@pytest.mark.parametrize("template", [None, FORGETS_THOUGHTS, LLAMA_3])
def test_what_a_user_says_follows_an_answer_as_the_template_writes_it(template):
    asked = [{"role": "user", "content": "and 静州?"}]
    text = text_of(conversation(template).after_turn([], last_token=END, asked=asked))
    assert text.replace("\n", "") == "<|im_start|>userand 静州?<|im_end|><|im_start|>assistant"


def test_a_template_that_takes_arguments_as_json_text_alone_carries_tools():
    conversation(DEEPSEEK_V3).verify([END])


def test_a_template_that_fails_in_any_way_is_refused_with_model_failure_and_fix():
    with pytest.raises(UnfitTemplate) as error:
        conversation("{{ messages + 1 }}").verify([END])
    (problem,) = error.value.problems
    assert problem.path == "model.path"
    assert 'it fails: TypeError: can only concatenate list (not "int") to list' in problem.rule
    assert "custom_chat_template" in problem.fix
    assert isinstance(error.value, SpecError), "the front door ends with the exit code of a bad spec"


@pytest.mark.parametrize(
    ("template", "kwargs", "opens"),
    [(None, {}, False), (FORGETS_THOUGHTS, {"enable_thinking": False}, False), (DEEPSEEK_R1, {}, True)],
    ids=["no thought", "an empty thought", "a thought to go on with"],
)
def test_it_is_known_whether_the_models_turn_begins_in_a_thought(template, kwargs, opens):
    assert conversation(template, **kwargs).opens_thought is opens


def test_an_end_of_turn_that_is_not_one_token_is_refused():
    with pytest.raises(UnfitTemplate, match="is not one token"):
        conversation().verify([ids_of("静")[0] if len(ids_of("静")) > 1 else 200])


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
