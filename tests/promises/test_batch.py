"""The batch builder `build_opd_batch` and its two aliases: exact rollout tokens first, the chat template only without them."""

from typing import Any

import pytest
import torch

from opd.batch import build_opd_batch, build_opd_batch_from_verl_batch, build_opd_batch_multiturn

PAD = 99
LENGTH = 40
# Prompts, responses and masks of three rows; in the first one a tool wrote the tokens 13 and 14.
PROMPTS = [[5, 6], [7], [8, 9, 10]]
RESPONSES = [[11, 12, 13, 14, 15], [21, 22], [31]]
MASKS = [[1, 1, 0, 0, 1], [1, 1], [0]]
MESSAGES = [[{"role": "user", "content": text}] for text in ("12+34=", "1+2=", "7+8")]


def padded(rows: list[list[int]], width: int, *, left: bool = False) -> torch.Tensor:
    fill = [[PAD] * (width - len(row)) for row in rows]
    return torch.tensor([(more + row) if left else (row + more) for row, more in zip(rows, fill, strict=True)])


def attention(prompts: list[list[int]], width: int) -> torch.Tensor:
    held = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(
        [row + [1] * len(said) + [0] * (5 - len(said)) for row, said in zip(held, RESPONSES, strict=True)]
    )


@pytest.fixture
def rollout() -> dict[str, Any]:
    """A rollout batch in verl's padded layout, with the messages that its prompts were made of."""
    mask = padded(MASKS, 5)
    mask[mask == PAD] = 0
    return {
        "prompts": padded(PROMPTS, 4, left=True),
        "responses": padded(RESPONSES, 5),
        "response_mask": mask,
        "attention_mask": attention(PROMPTS, 4),
        "raw_prompt": MESSAGES,
    }


class Tokenizer:
    """A tokenizer whose tokens are characters, with the interface of transformers."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(character) for character in text]

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool = True, return_dict: bool = False, **options: Any
    ) -> Any:
        text = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
        text += "<assistant>" if options["add_generation_prompt"] else ""
        ids = self.encode(text)
        return text if not tokenize else {"input_ids": ids, "attention_mask": [1] * len(ids)} if return_dict else ids


TOKENIZER = Tokenizer()
TEMPLATED = [TOKENIZER.encode(f"<user>{row[0]['content']}<assistant>") for row in MESSAGES]


def without(batch: dict[str, Any], *names: str) -> dict[str, Any]:
    rest = {name: value for name, value in batch.items() if name not in names}
    return rest | {"attention_mask": rest["attention_mask"][:, 4:]} if "prompts" in names else rest


def must_hold(built: Any, prompts: list[list[int]]) -> None:
    """Every row is its prompt and its response, padded at the right; the loss mask is the rollout's response mask."""
    view = built.padded(max_length=LENGTH, pad_token_id=PAD)
    for side in ("student", "teacher"):
        for number, (prompt, said) in enumerate(zip(prompts, RESPONSES, strict=True)):
            length = len(prompt) + len(said)
            assert view[f"{side}_input_ids"][number].tolist() == prompt + said + [PAD] * (LENGTH - length)
            assert view[f"{side}_attention_mask"][number].tolist() == [1] * length + [0] * (LENGTH - length)
            assert view[f"{side}_position_ids"][number, :length].tolist() == list(range(length))
        for name in ("input_ids", "attention_mask", "position_ids"):
            assert view[f"{side}_{name}"].dtype == torch.int64
            assert view[f"{side}_{name}"].shape == (3, LENGTH)
    for number, (prompt, mask) in enumerate(zip(prompts, MASKS, strict=True)):
        assert view["_loss_mask"][number].tolist() == [0] * len(prompt) + mask + [0] * (
            LENGTH - len(prompt) - len(mask)
        )
    assert view["valid_row_mask"].tolist() == [True, True, False], "the last row has nothing to train on"


def test_the_rollouts_prompts_are_preferred_to_the_chat_template(rollout):
    must_hold(build_opd_batch(rollout, max_length=LENGTH, tokenizer=TOKENIZER), PROMPTS)


def test_without_prompts_the_chat_template_makes_them(rollout):
    must_hold(build_opd_batch(without(rollout, "prompts"), max_length=LENGTH, tokenizer=TOKENIZER), TEMPLATED)


def test_without_prompts_and_messages_nothing_can_be_built(rollout):
    with pytest.raises(ValueError, match="prompts is missing"):
        build_opd_batch(without(rollout, "prompts", "raw_prompt"), max_length=LENGTH, tokenizer=TOKENIZER)


def test_the_multi_turn_alias_takes_prompts_only(rollout):
    must_hold(build_opd_batch_multiturn(rollout, max_length=LENGTH), PROMPTS)
    with pytest.raises(ValueError, match="prompts is missing"):
        build_opd_batch_multiturn(without(rollout, "prompts"), max_length=LENGTH, tokenizer=TOKENIZER)


def test_the_verl_batch_alias_takes_messages_only(rollout):
    batch = without(rollout, "prompts") | {"prompts": rollout["prompts"]}
    must_hold(build_opd_batch_from_verl_batch(batch, max_length=LENGTH, tokenizer=TOKENIZER), TEMPLATED)


def test_a_row_longer_than_max_length_is_refused_and_never_cut(rollout):
    assert build_opd_batch(rollout, max_length=7)
    with pytest.raises(ValueError, match="max_length=6"):
        build_opd_batch(rollout, max_length=6)


def test_sample_weights_are_one_a_row(rollout):
    weights = torch.tensor([0.5, 1.5, 1.0])
    built = build_opd_batch(rollout, max_length=LENGTH, sample_weights=weights)
    assert torch.equal(built.padded(max_length=LENGTH, pad_token_id=PAD)["sample_weights"], weights)
    with pytest.raises(ValueError, match="sample_weights"):
        build_opd_batch(rollout, max_length=LENGTH, sample_weights=weights[:2])
