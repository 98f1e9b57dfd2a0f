"""Conversations as token ids with a mask of what the model said, each turn exactly as the model would have been asked for it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from opd.data.chat_template import UnfitTemplate, render
from opd.data.turn_ends import end_tokens, up_to_end

ASSISTANT = "assistant"


class AnsweredRow(NamedTuple):
    """One row of training.

    Attributes:
        prompt: token ids before the first trained token; never trained.
        response: token ids of the turns of the model and of the text between them.
        mask: 1 for each token of `response` that the model said, its end-of-turn token included, else 0.
        is_cut: the response was longer than it may be, and lost its end.
    """

    prompt: list[int]
    response: list[int]
    mask: list[int]
    is_cut: bool = False

    def cut(self, length: int) -> "AnsweredRow":
        """Return the row with the first `length` tokens of the response."""
        if len(self.response) <= length:
            return self
        return AnsweredRow(self.prompt, self.response[:length], self.mask[:length], is_cut=True)


def answered_rows(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[AnsweredRow]:
    """Return the rows of one conversation; none where the model says nothing in it.

    A turn of the model begins after the header that ends a rollout's prompt. It ends with the last token that ends a turn, or
    is whole where there is none. Turns share a row as long as the template writes the earlier ones alike when more follows.
    Qwen3's template leaves the thoughts of past turns out. There each turn is a row of its own, after the conversation as the
    model would have read it.

    Args:
        tokenizer: with its chat template.
        messages: with `role` and `content`, and any other key that the template reads.
        template: what it reads besides: `tools`, `enable_thinking`.

    Raises:
        UnfitTemplate: it fails, or begins a finished turn otherwise than the header of the next one.
    """
    rows: list[AnsweredRow] = []
    told = ""
    for asked, said in _turns(tokenizer, messages, **template):
        if not (rows and asked.startswith(told)):
            rows.append(AnsweredRow(_ids(tokenizer, asked), [], []))
        else:
            _extend(rows[-1], _ids(tokenizer, asked[len(told) :]), trained=0)
        _extend(rows[-1], _ids(tokenizer, said), trained=1)
        told = asked + said
    return rows


def answer_row(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], answer: list[int], **template: Any
) -> AnsweredRow:
    """Return the row of a prompt and the token ids of its answer."""
    return AnsweredRow(_ids(tokenizer, render(tokenizer, messages, **template)), answer, [1] * len(answer))


def _turns(tokenizer: Any, messages: Sequence[Mapping[str, Any]], **template: Any) -> Iterator[tuple[str, str]]:
    """Yield (text that the model reads, text that it says) of each of its turns."""
    ends = [tokenizer.decode([end]) for end in end_tokens(tokenizer, **template)]
    for number, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        asked = render(tokenizer, messages[:number], **template)
        whole = render(tokenizer, messages[: number + 1], is_finished=True, **template)
        if not whole.startswith(asked):
            why = (
                f"after message {number} it writes {whole[-120:]!r}, which does not begin with what the model is asked with, "
                f"{asked[-120:]!r}"
            )
            raise UnfitTemplate.of(tokenizer, why, has_tools=False)
        yield asked, up_to_end(whole[len(asked) :], ends)


def _extend(row: AnsweredRow, ids: list[int], *, trained: int) -> None:
    row.response.extend(ids)
    row.mask.extend([trained] * len(ids))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
