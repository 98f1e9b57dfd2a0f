import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from opd.data.toy.task import (
    HELDOUT_FILE,
    TRAIN_FILE,
    Problem,
    all_problems,
    assert_disjoint,
    make_row,
    split_problems,
    write_parquet,
)


def problem_of(row):
    """The problem that a row asks, read from its prompt (what a model sees), not from its annotations."""
    question = row["prompt"][-1]["content"]
    a, _, b = question.removesuffix("=").partition("+")
    return Problem(int(a), int(b))


def test_every_ordered_pair_is_in_exactly_one_split():
    splits = split_problems()
    assert sorted(splits.train + splits.heldout) == all_problems()
    assert len(all_problems()) == len(set(all_problems())) == 100 * 100


def test_both_orders_of_a_pair_are_on_the_same_side():
    for side in split_problems()[:2]:
        members = set(side)
        assert all(Problem(p.b, p.a) in members for p in members)


def test_about_five_percent_are_held_out():
    # 5,050 unordered pairs, each held out with probability 0.05: about 500 ordered problems, standard deviation 31.
    assert 400 <= len(split_problems().heldout) <= 600


def test_the_held_out_problems_carry_as_often_as_all_problems_do():
    heldout = split_problems().heldout
    assert sum(p.answer_without_carries == p.answer for p in heldout) / len(heldout) == pytest.approx(0.55**2, abs=0.01)


def test_the_split_is_the_one_the_committed_models_were_trained_on():
    # Golden: the first held-out problems. If the salt or the hash changes, the models must be made again.
    assert [p.question for p in split_problems().heldout[:3]] == ["00+13=", "00+22=", "00+24="]


def test_the_validation_slice_is_part_of_the_training_split():
    splits = split_problems()
    assert set(splits.validation) < set(splits.train)
    assert_disjoint(splits.validation, splits.heldout)
    assert_disjoint(set(splits.train) - set(splits.validation), splits.validation)


def test_operands_are_padded_to_two_digits_and_the_answer_to_three():
    assert (Problem(7, 34).question, Problem(7, 34).answer) == ("07+34=", "041")
    assert (Problem(99, 99).question, Problem(99, 99).answer) == ("99+99=", "198")


def test_a_leak_is_refused_with_an_example():
    with pytest.raises(ValueError, match=r"1 training problem.*'12\+34='"):
        assert_disjoint([Problem(12, 34), Problem(1, 2)], [Problem(12, 34)])


def test_a_leak_of_the_swapped_problem_is_refused_too():
    with pytest.raises(ValueError, match=r"'34\+12=' in training and '12\+34=' held out"):
        assert_disjoint([Problem(34, 12)], [Problem(12, 34)])


def test_a_row_gives_its_problem_back():
    assert all(problem_of(make_row(p, "train")) == p for p in all_problems()[::97])


def test_the_files_hold_verls_columns(tmp_path):
    train_file, _ = write_parquet(tmp_path, seed=0, num_train=10)
    table = pq.read_table(train_file)
    assert table.column_names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    row = table.to_pylist()[0]
    problem = problem_of(row)
    assert row == {
        "data_source": "toy_add",
        "prompt": [{"role": "user", "content": problem.question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "split": "train",
            "index": 100 * problem.a + problem.b,
            "data_source": "toy_add",
            "problem_id": f"{problem.a:02d}+{problem.b:02d}",
        },
    }


def test_the_written_files_do_not_overlap_and_are_complete(tmp_path):
    files = write_parquet(tmp_path, seed=3)
    train, heldout = ([problem_of(row) for row in pq.read_table(file).to_pylist()] for file in files)
    assert_disjoint(train, heldout)
    assert sorted(train + heldout) == all_problems()


def test_the_same_seed_writes_the_same_bytes(tmp_path):
    first = [file.read_bytes() for file in write_parquet(tmp_path / "a", seed=5, num_train=64)]
    second = [file.read_bytes() for file in write_parquet(tmp_path / "b", seed=5, num_train=64)]
    assert first == second


def test_another_seed_changes_the_training_rows_but_not_the_held_out_rows(tmp_path):
    train_a, heldout_a = (file.read_bytes() for file in write_parquet(tmp_path / "a", seed=5))
    train_b, heldout_b = (file.read_bytes() for file in write_parquet(tmp_path / "b", seed=6))
    assert train_a != train_b
    assert heldout_a == heldout_b


def test_writing_replaces_old_files_and_leaves_nothing_else_behind(tmp_path):
    (tmp_path / TRAIN_FILE).write_text("old")
    write_parquet(tmp_path, seed=0, num_train=4, num_heldout=2)
    assert {file.name for file in tmp_path.iterdir()} == {TRAIN_FILE, HELDOUT_FILE}
    assert (pq.read_table(tmp_path / TRAIN_FILE).num_rows, pq.read_table(tmp_path / HELDOUT_FILE).num_rows) == (4, 2)


@pytest.mark.parametrize("num", [0, 9524])
def test_a_row_count_beyond_the_split_is_refused(tmp_path, num):
    with pytest.raises(ValueError, match=rf"num_train = {num}: must be between 1 and 9523"):
        write_parquet(tmp_path, seed=0, num_train=num)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_line_writes_both_files_and_imports_no_torch(tmp_path):
    script = (
        "import sys; from opd.data.toy.__main__ import main; "
        f"main(['--out', {str(tmp_path)!r}, '--seed', '7', '--num-train', '5']); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert pq.read_table(tmp_path / TRAIN_FILE).num_rows == 5
    assert done.stdout.splitlines() == [f"5 rows: {tmp_path / TRAIN_FILE}", f"477 rows: {tmp_path / HELDOUT_FILE}"]


@pytest.mark.slow
def test_the_command_line_has_help_with_an_example_and_refuses_a_bad_count_with_exit_2(tmp_path):
    command = [sys.executable, "-m", "opd.data.toy"]
    help_text = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "example:" in help_text
    bad = subprocess.run(
        [*command, "--out", str(tmp_path), "--num-train", "0"], capture_output=True, text=True, timeout=60
    )
    assert bad.returncode == 2
    assert "num_train = 0" in bad.stderr
