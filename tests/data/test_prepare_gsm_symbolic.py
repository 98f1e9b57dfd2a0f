"""Word problems from templates: filled as their conditions say, split by template, the same for the same seed."""

import json
import random
import re
import zipfile

import pyarrow.parquet as pq
import pytest

from opd.data import prepare_gsm_symbolic
from opd.data.gsm_templates import Template

WORDS = {"names": ["Ada", "Bo", "Cy"], "numbers": ["one", "two", "three", "four", "five"], "halves": ["1/2", "1/4"]}
TEMPLATE = '''
question_annotated = """
{name,Al} has {count_text,two} {fruit, apple}s and pays {price,1.5} each. {other,Di} pays {share,1/2} of {total, 9}. how much?

#init:
- name, other = sample(names, 2)
- count_text, count = range_str(2, 6, 1, numbers)
- fruit = sample(["apple", "pear"])
- $price = arange(0.5, 4, 0.5)
- $share = sample(halves)
- $total = range(1, 30)

#conditions:
- is_int(count * price)
- total == count * price * 2
- is_int(total * share)

#answer: int(total * share)
"""
answer_annotated = """
It costs {count}*{price} = <<{count}*{price}={count*price}>>{count*price}.
{other} pays {total}*{share} = {int(total*share)}.
#### {int(total*share)}
"""
'''


def test_a_drawing_satisfies_the_conditions_and_follows_from_the_seed():
    template = Template(TEMPLATE, WORDS)
    rng = random.Random(0)
    drawn = [template.draw(rng, 10_000)[0] for _ in range(20)]
    sentence = re.compile(r"(\w+) has (\w+) \w+s and pays ([\d.]+) each\. (\w+) pays (\d)/(\d) of (\d+)\. How much\?")
    for drawing in drawn:
        name, count, price, other, share, parts, total = sentence.fullmatch(drawing.question).groups()
        assert int(total) == (WORDS["numbers"].index(count) + 1) * float(price) * 2
        assert name != other
        assert drawing.solution.endswith(f"#### {int(total) * int(share) // int(parts)}")
    again = random.Random(0)
    assert drawn == [template.draw(again, 10_000)[0] for _ in range(20)]
    assert len(set(drawn)) > 5


def test_conditions_that_nothing_satisfies_end_after_the_given_attempts():
    template = Template(TEMPLATE.replace("range(1, 30)", "range(100, 130)"), WORDS)
    assert template.draw(random.Random(0), 50) == (None, 50)


@pytest.fixture
def _wheel(tmp_path, monkeypatch):
    """A wheel of six templates, in the place of the published one."""
    file = tmp_path / "package.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{prepare_gsm_symbolic.TEMPLATES}replacements.json", json.dumps(WORDS))
        for number in range(6):
            archive.writestr(f"{prepare_gsm_symbolic.TEMPLATES}symbolic/{number:04}.toml", TEMPLATE)
    monkeypatch.setattr(prepare_gsm_symbolic, "open_wheel", lambda wheel: zipfile.ZipFile(file))


@pytest.mark.usefixtures("_wheel")
def test_held_out_problems_are_not_trained_and_new_templates_are_never_seen(tmp_path, monkeypatch):
    out = tmp_path / "gsm"
    for name, number in {"NUM_TRAIN": 6, "NUM_SEEN": 2, "NUM_NEW": 4}.items():
        monkeypatch.setattr(prepare_gsm_symbolic, name, number)
    prepare_gsm_symbolic.main(["--out", str(out)])
    rows = {path.stem: pq.read_table(path).to_pylist() for path in out.glob("*.parquet")}
    sources = {name: {row["data_source"] for row in found} for name, found in rows.items()}
    assert sources == {"train": {"gsm"}, "val_seen": {"gsm_seen"}, "val_new": {"gsm_new"}}
    assert {name: len(found) for name, found in rows.items()} == {"train": 30, "val_seen": 10, "val_new": 4}
    ids = {name: {row["extra_info"]["problem_id"] for row in found} for name, found in rows.items()}
    assert {one.partition("-")[0] for one in ids["val_new"]} == {"0004"}
    assert not ids["train"] & ids["val_seen"]
    for row in rows["train"]:
        assert row["messages"][:-1] == row["prompt"]
        answer = row["messages"][-1]["content"]
        assert answer.endswith(f"\\boxed{{{row['reward_model']['ground_truth']}}}.")
        assert "<<" not in answer
