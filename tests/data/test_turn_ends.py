"""The end of a turn: every token of tokenizer, generation config and template ends one, wherever it is asked for."""

import copy
import json

import pytest
from tests.agent.talk import END, TOKENIZER, Tools, call, talk

from opd.data.answered import answered_rows
from opd.data.turn_ends import end_tokens, last_end, up_to_end, written_end

OTHER = TOKENIZER.pad_token
GEMMA = "{% for m in messages %}{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}assistant\n{% endif %}"


def saved(folder, *, eos: str, generation: list | int | None, template: str | None = GEMMA):
    tokenizer = copy.deepcopy(TOKENIZER)
    tokenizer.eos_token, tokenizer.chat_template, tokenizer.name_or_path = eos, template, str(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    return tokenizer


@pytest.mark.parametrize(
    ("eos", "generation", "template", "ends", "closes"),
    [
        (END, None, GEMMA, {END}, END),
        (END, [TOKENIZER.pad_token_id, TOKENIZER.eos_token_id], GEMMA, {END, OTHER}, END),
        (OTHER, TOKENIZER.pad_token_id, GEMMA, {END, OTHER}, END),  # a base model with an instruct model's template
        (OTHER, None, None, {OTHER}, OTHER),
        (OTHER, None, "{{ raise_exception('no') }}", {OTHER}, OTHER),
    ],
)
def test_the_end_tokens_come_from_tokenizer_generation_config_and_template(
    tmp_path, eos, generation, template, ends, closes
):
    tokenizer = saved(tmp_path, eos=eos, generation=generation, template=template)
    assert set(tokenizer.convert_ids_to_tokens(end_tokens(tokenizer))) == ends
    assert tokenizer.convert_ids_to_tokens(last_end(tokenizer)) == closes
    assert (written_end(tokenizer) is None) == (closes == OTHER)


def test_a_turn_ends_with_the_last_of_its_ends():
    assert up_to_end("a<e>b<f>\n", ["<e>", "<f>"]) == "a<e>b<f>"
    assert up_to_end("a\n", ["<e>"]) == "a\n"


def test_sft_trains_a_turn_up_to_the_end_that_the_template_writes(tmp_path):
    tokenizer = saved(tmp_path, eos=OTHER, generation=None)
    [row] = answered_rows(tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert tokenizer.decode(row.response) == f"b{END}"


def test_an_agents_turn_that_ends_with_a_second_end_token_is_answered(tmp_path):
    generation = [TOKENIZER.pad_token_id, TOKENIZER.eos_token_id]
    tokenizer = saved(tmp_path, eos=END, generation=generation, template=TOKENIZER.chat_template)
    tools = Tools()
    dialogue = talk([call(city="a") + OTHER, "42" + OTHER], tools, tokenizer=tokenizer)
    assert (dialogue.ending, len(tools.asked)) == ("answered", 1)
