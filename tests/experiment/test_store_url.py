"""`store.url`: a URL that a store opens, or a folder's path, never a mistyped URL."""

import pytest
from tests.experiment.trees import problems_of, tree_of

from opd.experiment import parse_tree
from opd.store.access import CREATE_ONLY_PROTOCOLS


@pytest.mark.parametrize(
    "url",
    ["s3:/bucket/x", "s3//bucket/x", "S3://bucket/x", "s3://", "s3:///x", "s3:bucket/x", "minio://x/y", "abfss://c/x",
     "https://b.s3.amazonaws.com/x", "File:///x", "file:/x", "file://", " s3://bucket/x", "memory://x"],
)  # fmt: skip
def test_a_mistyped_url_is_refused(url, minimal):
    [problem] = problems_of(tree_of(minimal, "opd", **{"store.url": url}))
    assert (problem.path, problem.value) == ("store.url", url)
    assert "file://FOLDER" in problem.rule
    assert "s3://BUCKET/PREFIX" in problem.fix


@pytest.mark.parametrize(
    "url",
    [*(f"{protocol}://bucket/a/b" for protocol in CREATE_ONLY_PROTOCOLS), "s3://bucket", "file:///x", "file://x", "/a/b",
     "outputs/store", "outputs//store", "../x", "run:1/store", "s3/x", "./s3:/x", "/mnt/My Runs/x"],
)  # fmt: skip
def test_what_a_store_opens_is_taken(url, minimal):
    assert parse_tree(tree_of(minimal, "opd", **{"store.url": url})).spec.store.url == url


@pytest.mark.parametrize("kind", ["convert", "pipeline"])
def test_it_is_refused_once_of_a_file_that_starts_no_run_of_verl_itself(kind, minimal):
    [problem] = problems_of({**minimal(kind), "store": {"url": "s3:/bucket/x"}})
    assert (problem.path, problem.value) == ("store.url", "s3:/bucket/x")
