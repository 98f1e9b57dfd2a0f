"""Pass rates of prompts: found again in another file, in another order, and over all answers to a prompt."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opd.evaluation.pass_rates import PassRate, prompt_id, read_pass_rates, write_pass_rates

ASKED = [{"role": "user", "content": "12+34="}]


def test_a_prompt_is_named_by_what_it_says_and_its_answer_and_by_nothing_else():
    name = prompt_id(ASKED, "46")
    assert len(name) == 32
    # Files laid together: a column that only one has is empty in the other, keys change places, numbers become texts.
    assert prompt_id([{"content": "12+34=", "role": "user", "name": None}], 46) == name
    assert prompt_id([{"role": "user", "content": "12+35="}], "46") != name
    assert prompt_id(ASKED, "47") != name
    assert prompt_id([{"role": "system", "content": "12+34="}], "46") != name


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "eval" / "pass_rates.parquet"
    rates = [PassRate("a", 0.25, 8, "m"), PassRate("b", 1.0, 8, "m")]
    write_pass_rates(path, rates)
    assert read_pass_rates(path) == {"a": rates[0], "b": rates[1]}
    assert pq.read_schema(path).names == ["prompt_id", "pass_rate", "k", "checkpoint"]


def test_a_prompt_in_several_rows_has_the_rate_of_all_its_answers(tmp_path):
    write_pass_rates(tmp_path / "p.parquet", [PassRate("a", 0.25, 8, "m"), PassRate("a", 1.0, 4, "m")])
    assert read_pass_rates(tmp_path / "p.parquet") == {"a": PassRate("a", 0.5, 12, "m")}


def test_a_file_of_something_else_is_refused_by_what_it_lacks(tmp_path):
    pq.write_table(pa.table({"prompt_id": ["a"], "pass_rate": [0.5]}), tmp_path / "p.parquet")
    with pytest.raises(ValueError, match="lacks the columns k, checkpoint"):
        read_pass_rates(tmp_path / "p.parquet")
    write_pass_rates(tmp_path / "p.parquet", [PassRate("a", 0.0, 0, "m")])
    with pytest.raises(ValueError, match=r"row 1 .* has an empty field, or no answer"):
        read_pass_rates(tmp_path / "p.parquet")
    (tmp_path / "p.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="cannot be read as Parquet"):
        read_pass_rates(tmp_path / "p.parquet")
