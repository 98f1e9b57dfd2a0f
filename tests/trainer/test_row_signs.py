"""Signs of silent faults in a step's rows."""

import torch
from transformers import AutoTokenizer

from opd.data.toy import STUDENT_DIR
from opd.rollout.rows import Order, Row, row_of
from opd.trainer.row_signs import RowSigns, generation_header


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def rows(orders, prompts, responses) -> list[Row]:
    return [
        row_of(Order(*order), str(order[0]), prompt.tolist(), response.tolist(), [1] * len(response))
        for order, prompt, response in zip(orders, prompts, responses, strict=True)
    ]


def test_prompts_are_compared_by_their_tokens_and_answers_within_their_prompt():
    signs = RowSigns([8, 9], num_prompts=100)
    orders = [(1, 0), (1, 1), (2, 0), (2, 1)]
    prompts = [ids(1, 8, 9), ids(1, 8, 9), ids(1, 8, 9), ids(1, 8, 9)]
    found = signs.of(rows(orders, prompts, [ids(4, 5), ids(4, 5), ids(4, 5), ids(6)]), max_tokens=9)
    assert found == {
        "data/duplicate_prompts": 0.5, "rollout/empty": 0.25, "rollout/duplicate_answers": 0.5,
        "data/prompts_off_template": 0.0,
    }  # fmt: skip


def test_a_step_that_asks_all_of_the_last_steps_prompts_says_so_where_there_are_others():
    for num_prompts, asked, expected in ((8, 4, 1.0), (7, 4, None), (99, 3, None)):
        signs = RowSigns([], num_prompts=num_prompts)
        step = rows([(n, 0) for n in range(asked)], [ids(n) for n in range(asked)], [ids(4, 5)] * asked)
        assert "data/repeated_prompts" not in signs.of(step, max_tokens=9)
        assert signs.of(step, max_tokens=9).get("data/repeated_prompts") == expected


def test_a_step_that_asks_the_prompts_of_two_steps_before_says_so_unless_the_data_come_round():
    for num_prompts, expected in ((12, 1.0), (11, None)):
        signs = RowSigns([], num_prompts=num_prompts)
        first, second = (
            rows([(n, 0) for n in some], [ids(n) for n in some], [ids(4, 5)] * 4) for some in (range(4), range(4, 8))
        )
        found = [signs.of(step, max_tokens=9).get("data/repeated_prompts") for step in (first, second, first)]
        assert found == [None, None, expected]


def test_an_answer_of_the_one_token_that_a_step_allows_is_not_empty():
    for max_tokens, expected in ((1, 0.0), (2, 1.0)):
        found = RowSigns([], num_prompts=9).of(rows([(1, 0)], [ids(1)], [ids(4)]), max_tokens=max_tokens)
        assert found["rollout/empty"] == expected


def test_the_header_of_the_models_template_ends_every_prompt_that_it_wrote():
    tokenizer = AutoTokenizer.from_pretrained(STUDENT_DIR)
    header = generation_header(tokenizer, {"enable_thinking": False})
    assert tokenizer.decode(header).startswith("<|im_start|>assistant")
    signs = RowSigns(header, num_prompts=9)
    written = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1="}], add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    orders, answers = [(1, 0), (2, 0)], [ids(4, 5), ids(4, 5)]
    asked = rows(orders, [torch.tensor(written), ids(*tokenizer("1+1=")["input_ids"])], answers)
    found = signs.of(asked, max_tokens=9)
    assert found["data/prompts_off_template"] == 0.5


class Sentences:
    """A tokenizer that puts `_` before a text's first word, and joins `=` with a line's end."""

    def __init__(self, header: str) -> None:
        self.name_or_path, self._header = "sentences", header

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt, **kwargs):
        assert kwargs == {}
        return "user: " + messages[-1]["content"] + (self._header if add_generation_prompt else "")

    def __call__(self, text, *, add_special_tokens):
        pieces = f"_{text}".replace("=\n", "\0").replace("\n", " \n ").replace("\0", " =\n ").split(" ")
        return {"input_ids": [sum(map(ord, piece)) for piece in pieces if piece]}


def test_a_header_is_read_as_it_stands_in_a_prompt():
    assert generation_header(Sentences(" model :"), {}) == [sum(map(ord, "model")), ord(":")]


def test_a_header_that_runs_into_the_question_is_not_looked_at():
    assert generation_header(Sentences("\nmodel :"), {}) == []
