"""Names of problems, for the files and rows that people have."""

import logging

import pytest

from opd.evaluation.problems import ProblemFile, name_problems


def names(*files: tuple[str, list[str], list[object]]) -> list[tuple[str, int]]:
    return [tuple(problem) for problem in name_problems([ProblemFile(*file) for file in files])]


def test_rows_with_an_index_of_their_own_keep_it_also_over_the_parts_of_one_benchmark():
    assert names(("a.parquet", ["aime24", "math"], [7, 7]), ("b.parquet", ["aime24"], [3])) == [
        ("aime24", 7),
        ("math", 7),
        ("aime24", 3),
    ]


@pytest.mark.parametrize(
    ("paths", "called"),
    [
        (["data/eval_processed/boxed/val_aime24.parquet", "data/eval_processed/dapo/val_aime24.parquet"], ["-boxed", "-dapo"]),
        (["/a/val.parquet", "/b/c/val.parquet"], ["-a", "-b-c"]),
        (["s3://bucket/boxed/v.parquet", "s3://bucket/dapo/v.parquet"], ["-boxed", "-dapo"]),
        (["aime.parquet", "aime again.jsonl"], ["-aime", "-aime_again"]),
        (["data/val.parquet", "data/boxed/val.parquet"], ["", "-boxed"]),
    ],
)  # fmt: skip
def test_variants_of_one_benchmark_are_told_apart_by_their_paths(paths, called):
    files = [(path, ["aime24"] * 2, [0, 1]) for path in paths]
    assert names(*files) == [(f"aime24{name}", index) for name in called for index in (0, 1)]


@pytest.mark.parametrize(
    "indices",
    [
        [None, None, None],  # no extra_info, or none with an index
        ["9a9b6eb4", "0c1d", "77fe"],  # the DAPO files that verl's examples train on
        [0, 0, 0],  # copied rows
        [True, 2, 3],
    ],
)
def test_rows_without_an_index_of_their_own_are_numbered_by_their_place_and_it_is_said(indices, caplog):
    with caplog.at_level(logging.WARNING):
        found = names(("a.parquet", ["math", "other", "math", "math"], [indices[0], 5, *indices[1:]]))
    assert found == [("math", 0), ("other", 5), ("math", 2), ("math", 3)]
    assert "math in a.parquet: rows lack an extra_info.index" in caplog.text


@pytest.mark.parametrize(
    "files", [[("b.parquet", ["a"], [0])] * 2, [("b.parquet", ["a", "a-c"], [0, 0]), ("c.json", ["a"], [0])]]
)
def test_data_sets_that_no_name_tells_apart_are_refused(files):
    with pytest.raises(ValueError, match="rename a data_source"):
        names(*files)
