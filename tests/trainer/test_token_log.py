"""Steps and rollouts that a run keeps token by token, and the text of each token."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opd.experiment import load_text
from opd.rollout.rows import Order, Row, row_of
from opd.trainer.token_log import MAX_TOKENS, TokenLog, file_key, pieces
from opd.update.token_view import VALUES, RowView


class Bytes:
    """A token a byte, as byte-level tokenizers write what they have no word for."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


class Words:
    """Drops the space at the beginning of a text, as sentencepiece's tokenizers do."""

    def decode(self, ids):
        return "".join((" one", " two", ",")[token] for token in ids).removeprefix(" ")


def log(tmp_path, *sets: str) -> TokenLog:
    base = [
        "model.path=m",
        "teacher.path=t",
        "data.train=[t]",
        "data.val=[v]",
        "data.max_response_length=8",
        "trainer.gpus_per_node=1",
    ]
    (tmp_path / "tokens").mkdir(exist_ok=True)
    run = SimpleNamespace(keep=lambda files: [(tmp_path / key).write_bytes(data) for key, data in files.items()])
    return TokenLog(load_text("kind: opd", sets=[*base, *sets]).spec, run)


@pytest.mark.parametrize("text", ["静州 <b>ok</b> 👍", "\x80\xff"])
def test_pieces_join_to_the_response_and_a_character_comes_with_its_last_token(text):
    ids = list(text.encode("latin1" if text.isascii() or "\x80" in text else "utf-8"))
    found = list(pieces(ids, Bytes()))
    assert len(found) == len(ids)
    assert "".join(found) == Bytes().decode(ids)


def test_a_characters_first_tokens_are_empty():
    assert list(pieces(list("a静b".encode()), Bytes())) == ["a", "", "", "静", "b"]


def test_a_word_keeps_the_space_that_a_tokenizer_drops_at_the_beginning_of_a_text():
    assert list(pieces([0, 1, 2, 1], Words())) == ["one", " two", ",", " two"]


def row(order: tuple[int, int], prompt: list[int], response: list[int], score: float = 0.0) -> Row:
    made = row_of(Order(*order), str(order[0]), prompt, response, [1] * len(response))
    made.columns["rm_scores"] = torch.tensor([0.0] * (len(response) - 1) + [score])
    return made


def test_the_first_and_last_step_and_those_with_a_checkpoint_are_kept_by_the_first_answer_of_each_prompt(tmp_path):
    rows = [row(order, [1], [1]) for order in ((9, 0), (4, 1), (4, 0), (6, 3))]
    kept = log(tmp_path, "trainer.save_freq=3", "opd.num_kept_rollouts=2")
    assert [step for step in range(1, 9) if kept.choose(step, 8, rows)] == [1, 3, 6, 8]
    assert kept.choose(1, 8, rows) == (Order(4).row_id, Order(6, 3).row_id)
    assert not log(tmp_path, "opd.num_kept_rollouts=0").choose(1, 8, rows)


def test_what_was_seen_stands_at_its_tokens_and_a_long_response_is_cut(tmp_path):
    num = MAX_TOKENS + 3
    trained = np.arange(num) % 2 == 0
    values = np.arange(trained.sum(), dtype=np.float32)
    values[1] = np.nan
    top = np.stack([np.full((len(values), 3), 97), np.ones((len(values), 3)) / 4], -1)
    view = RowView(trained=trained, kept=values == 0, entropy=values, divergence=values / 3, top_student=top, top_teacher=top * np.nan)  # fmt: skip
    kept = log(tmp_path, "opd.importance.tokens.score=q3")
    shown = kept.choose(6, 6, [row((4, 0), list(b"2 + 2?"), [97] * num, float("nan")), row((5, 0), [97], [97])])
    kept.keep(6, read=lambda: [{shown[0]: view}], loss_type="reverse_kl", tokenizer=Bytes())
    step = json.loads((tmp_path / file_key(6)).read_bytes())
    [kept_row] = step.pop("rows")
    assert step == {"step": 6, "lengths": [num, 1], "score": "q3", "ratio": step["ratio"], "divergence": "forward_kl"}
    assert (kept_row["prompt"], kept_row["score"], kept_row["num_tokens"]) == ("2 + 2?", None, num)
    assert {len(kept_row[name]) for name in ("texts", "trained", "kept", "entropy", "divergence", "student")} == {
        MAX_TOKENS
    }
    assert kept_row["entropy"][:6] == [0.0, None, None, None, 2.0, None]
    assert kept_row["divergence"][8] == 1.333
    assert kept_row["student"][:2] == [[["a", 0.25]] * 3, []]
    assert not any(kept_row["teacher"])
    assert kept_row["kept"][:3] == [True, False, False]


@pytest.mark.parametrize(
    ("score", "labels"), [("soft_or", ["forward_kl", "reverse_kl"]), ("q3", ["forward_kl", "forward_kl"])]
)
def test_a_kept_step_names_the_divergence_that_its_stage_scores_by(tmp_path, score, labels):
    stages = (
        "opd.loss_type=jsd",
        "opd.beta=0.5",
        "opd.stages=[{until: 1, loss_type: forward_kl}, {loss_type: reverse_kl}]",
    )
    kept = log(tmp_path, *stages, f"opd.importance.tokens.score={score}")
    for step, loss_type in ((1, "forward_kl"), (2, "reverse_kl")):
        [number] = kept.choose(step, 2, [row((4, 0), [1], [1])])
        one, values = np.ones(1, bool), {name: np.full((1, *shape), np.nan) for name, shape in VALUES.items()}
        seen = {number: RowView(trained=one, kept=one, **values)}
        kept.keep(step, read=lambda seen=seen: [seen], loss_type=loss_type, tokenizer=Bytes())
    steps = [json.loads((tmp_path / file_key(step)).read_bytes()) for step in (1, 2)]
    assert [step["divergence"] for step in steps] == labels
    assert [len(step["rows"]) for step in steps] == [1, 1]
