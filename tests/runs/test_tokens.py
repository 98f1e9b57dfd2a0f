"""The file of a step's tokens: written and read back, and refused by what is wrong with it."""

from __future__ import annotations

import json

import pytest

from opd.runs.tokens import StepTokens, TokenRow, from_bytes, to_bytes

ROW = TokenRow(
    data_index=17, sample=2, prompt="Wie viel?", score=-1.0, num_tokens=5, texts=("静", "", "\u2028<b>"),
    trained=(True, False, True), kept=(True, False, False), entropy=(0.25, None, 1e-7), divergence=(-1e-9, None, None),
)  # fmt: skip
STEP = StepTokens(
    step=20, score="soft_or", ratio=0.2, divergence="jsd", covers_all=True, density=((0, 43, 2, 1),), rows=(ROW,)
)


def changed(**changes: object) -> bytes:
    return json.dumps(json.loads(to_bytes(STEP)) | changes).encode()


def test_a_file_gives_the_steps_tokens_back():
    assert from_bytes(to_bytes(STEP)) == STEP


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[]", "the file: "),
        (b'{"step": 1', "the file: "),
        (changed(step="<b>"), "step: "),
        (changed(density=[[0, 44, 1, 1]]), "density.0.1: Input should be less than 44"),
        (changed(rows=[json.loads(ROW.model_dump_json()) | {"kept": [True]}]), "rows.0: .* lists of different length"),
        (changed(more=1), "more: "),
    ],
    ids=["no object", "cut", "a text for a number", "a bin that is none", "uneven lists", "an unknown key"],
)
def test_what_is_no_such_file_is_refused_by_place(content, words):
    with pytest.raises(ValueError, match=words):
        from_bytes(content)
