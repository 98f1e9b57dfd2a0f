"""What an evaluation calls its problems, whatever files and rows people have."""

import logging

import pytest

from opd.evaluation.problems import ProblemFile, name_problems


def file(path: str, sources: list[str], indices: list[object]) -> ProblemFile:
    return ProblemFile(path=path, data_sources=sources, indices=indices)


def names(*files: ProblemFile) -> list[tuple[str, int]]:
    return [tuple(problem) for problem in name_problems(files)]


def test_rows_with_an_index_of_their_own_keep_it():
    assert names(file("a.parquet", ["aime24", "math", "aime24"], [7, 7, 3])) == [
        ("aime24", 7),
        ("math", 7),
        ("aime24", 3),
    ]


def test_parts_of_one_benchmark_are_one_data_set():
    parts = [file(f"math-{part}.parquet", ["math"] * 2, [2 * part, 2 * part + 1]) for part in (0, 1)]
    assert names(*parts) == [("math", 0), ("math", 1), ("math", 2), ("math", 3)]


@pytest.mark.parametrize(
    ("paths", "called"),
    [
        (["data/eval_processed/boxed/val_aime24.parquet", "data/eval_processed/dapo/val_aime24.parquet"], ["boxed", "dapo"]),
        (["/a/val.parquet", "/b/c/val.parquet"], ["a", "b-c"]),
        (["s3://bucket/boxed/v.parquet", "s3://bucket/dapo/v.parquet"], ["boxed", "dapo"]),
        (["aime.parquet", "aime again.jsonl"], ["aime", "aime_again"]),
        (["aime.parquet", "aime.parquet"], ["1", "2"]),
        (["aime.parquet", "aime.json"], ["1", "2"]),
    ],
)  # fmt: skip
def test_variants_of_one_benchmark_are_told_apart_by_their_paths(paths, called):
    files = [file(path, ["aime24"] * 2, [0, 1]) for path in paths]
    assert names(*files) == [(f"aime24-{name}", index) for name in called for index in (0, 1)]


def test_a_variant_that_lies_above_the_others_keeps_the_benchmarks_name():
    files = [file("data/val.parquet", ["aime24"], [0]), file("data/boxed/val.parquet", ["aime24"], [0])]
    assert names(*files) == [("aime24", 0), ("aime24-boxed", 0)]


def test_a_name_that_is_another_data_sets_already_gives_way_to_numbers():
    files = [file("boxed.parquet", ["a", "a-boxed"], [0, 0]), file("dapo.parquet", ["a"], [0])]
    assert names(*files) == [("a-1", 0), ("a-boxed", 0), ("a-2", 0)]


@pytest.mark.parametrize(
    "indices",
    [
        [None, None, None],  # no extra_info, or none with an index
        ["9a9b6eb4", "0c1d", "77fe"],  # the DAPO files that verl's examples train on
        [0, 0, 0],  # copied rows
        [0, None, 1],
        [True, 2, 3],
    ],
)
def test_rows_without_an_index_of_their_own_are_numbered_by_their_place_and_it_is_said(indices, caplog):
    with caplog.at_level(logging.WARNING):
        assert names(file("a.parquet", ["math", "other", "math", "math"], [indices[0], 5, *indices[1:]])) == [
            ("math", 0),
            ("other", 5),
            ("math", 2),
            ("math", 3),
        ]
    assert "math in a.parquet: not every row has an extra_info.index" in caplog.text


def test_data_sets_that_no_name_tells_apart_are_refused():
    files = [file("b.parquet", ["a", "a-1", "a-b"], [0, 0, 0]), file("b.json", ["a"], [0])]
    with pytest.raises(ValueError, match="rename a data_source"):
        names(*files)
