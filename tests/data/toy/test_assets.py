import hashlib
import json

import pytest
from tests.toy_models.make_models import greedy_accuracy, problems_sha256
from transformers import AutoModelForCausalLM, AutoTokenizer

from opd.data.toy import ASSETS_DIR, STUDENT_DIR, TEACHER_DIR
from opd.data.toy.task import SPLIT_SALT, split_problems

FOLDERS = {"teacher": TEACHER_DIR, "student": STUDENT_DIR}


@pytest.fixture(scope="module")
def provenance() -> dict:
    return json.loads((ASSETS_DIR / "provenance.json").read_text())


def load(name: str, **kwargs):
    folder = FOLDERS[name]
    return AutoModelForCausalLM.from_pretrained(folder, **kwargs), AutoTokenizer.from_pretrained(folder)


def test_the_student_starts_where_it_answers_only_what_needs_no_carry():
    heldout = split_problems().heldout
    without_carry = sum(p.answer_without_carries == p.answer for p in heldout) / len(heldout)
    measured = greedy_accuracy(*load("student"), heldout)
    assert measured == pytest.approx(without_carry, abs=0.02)
    assert measured < 0.35


@pytest.mark.parametrize("name", FOLDERS)
def test_the_provenance_names_these_weights_and_this_split(name, provenance):
    splits = split_problems()
    trained_on = sorted(set(splits.train) - set(splits.validation))
    entry = provenance[name]
    assert provenance["split_salt"] == SPLIT_SALT
    assert entry["weights_sha256"] == hashlib.sha256((FOLDERS[name] / "model.safetensors").read_bytes()).hexdigest()
    assert entry["train_problems_sha256"] == problems_sha256(trained_on)
    assert entry["heldout_problems_sha256"] == problems_sha256(splits.heldout)
    assert entry["num_train_problems"] == len(trained_on)
    assert entry["num_heldout_problems_excluded"] == len(splits.heldout)
