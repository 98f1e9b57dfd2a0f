"""Tokens that one model lacks: the teacher never reads them, and nothing after them is trained."""

import pytest
import torch
from tests.update.exact import load
from tests.update.models import save_model
from tests.update.workers import Case, row, run_cases, tensordict

from opd.batch.builder import rows_from_batch
from opd.update.reading import before_unshared

# Ids below 61 are both models'; the student's tokenizer has 70, the teacher's 64, which is all its embedding holds.
SHARED, STUDENT, TEACHER = 61, 70, 64
FACTS = {"valid_vocab": SHARED, "student_vocab": STUDENT, "teacher_vocab": TEACHER}
UNREAD = 65
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("rows", "masks"),
    [
        ([row([5, 6], [7, 8, UNREAD, 9, 10]), row([5, 6], [7, 8])], [[1, 1, 0, 0, 0], [1, 1]]),
        # A prompt with such a token leaves nothing, and tool tokens are not counted.
        ([row([5, SHARED], [7, 8]), row([5, 6], [7, UNREAD, 9, 10], mask=[1, 0, 0, 1])], [[0, 0], [1, 0, 0, 0]]),
    ],
)
def test_a_response_is_trained_up_to_its_first_token_that_the_teacher_lacks(rows, masks):
    batch = rows_from_batch(tensordict(rows))
    kept = batch.response_mask & before_unshared(batch, SHARED)
    assert [mask.int().tolist() for mask in kept.split(batch.response_lens.tolist())] == masks


READ = [row([3, 4, 5], [6, 7, 8, 9]), row([9, 8], [11, 12, 60, 14, 15]), row([20], [21, 22]), row([30, 31], [32])]
# The same rows with tokens that the teacher lacks: in a prompt, in a response, as its first and its last token.
WITH_UNREAD = [READ[0], row([9, 8], [11, 12, UNREAD, 14, 15]), row([20], [21, 95]), row([30, 64], [32])]
MASKS = [[1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0], [0]]
LEFT_OUT = [one | {"mask": mask} for one, mask in zip(READ, MASKS, strict=True)]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("models")
    return {
        "student": save_model(base / "s", hidden=32, layers=2, rows=96, tied=False, seed=1),
        "teacher": save_model(base / "t", hidden=48, layers=2, rows=TEACHER, tied=False, seed=2),
    }


@pytest.fixture(scope="module")
def updates(models) -> dict[str, dict]:
    """Real updates of the real worker, all in one process."""
    cases = {
        "read": Case(**models, rows=READ, micro_batch=4, facts=FACTS),
        "with unread": Case(**models, rows=WITH_UNREAD, micro_batch=2, facts=FACTS),
        "left out": Case(**models, rows=LEFT_OUT, micro_batch=4, facts=FACTS),
        "equal": Case(**models, rows=READ, micro_batch=4),
    }
    return dict(zip(cases, run_cases(list(cases.values())), strict=True))


@slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("side", "entries"), [("student", STUDENT), ("teacher", TEACHER)])
def test_the_steps_mass_is_the_mean_over_its_tokens_of_what_the_model_itself_puts_there(models, updates, side, entries):
    model, masses = load(models[side]), []
    for one in READ:
        logits = model(torch.tensor([one["prompt"] + one["response"]])).logits[0]
        predicting = logits[len(one["prompt"]) - 1 : -1, :entries]
        masses += torch.softmax(predicting, dim=-1)[:, SHARED:].sum(dim=-1).tolist()
    expected = sum(masses) / len(masses)
    assert expected > 1e-3
    assert updates["read"]["metrics"][f"opd/unshared_mass_{side}"] == pytest.approx(expected, rel=1e-4)


@slow
@pytest.mark.timeout(900)
def test_what_stands_behind_a_token_that_the_teacher_lacks_trains_nothing(updates):
    # Id 95 has no row in the teacher's embedding at all.
    found, reference = updates["with unread"]["metrics"], updates["left out"]["metrics"]
    assert (found["opd/unshared_tokens"], reference["opd/unshared_tokens"]) == (3 + 1 + 1, 0)
    for name in ("opd/loss", "opd/grad_norm", "opd/num_tokens", "opd/unshared_mass_teacher"):
        assert found[name] == pytest.approx(reference[name], rel=1e-5), name


@slow
@pytest.mark.timeout(900)
def test_equal_tokenizers_measure_nothing(updates):
    assert not [name for name in updates["equal"]["metrics"] if "unshared_mass" in name]
    assert updates["equal"]["metrics"]["opd/loss"] == updates["read"]["metrics"]["opd/loss"]
