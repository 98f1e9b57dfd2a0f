"""`store.url`: a URL that a store opens, or a folder's path, never a mistyped URL."""

import pytest
from tests.experiment.trees import problems_of, tree_of

from opd.experiment import parse_tree


@pytest.mark.parametrize("url", ["s3:/bucket/x", "S3://bucket/x", "s3://", "minio://x/y", "file:/x", " s3://b/x"])
@pytest.mark.parametrize("kind", ["opd", "convert", "pipeline"])
def test_a_mistyped_url_is_refused_once(kind, url, minimal):
    [problem] = problems_of(tree_of(minimal, kind, **{"store.url": url}))
    assert (problem.path, problem.value) == ("store.url", url)
    assert "s3://BUCKET/PREFIX" in problem.fix


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "file:///x", "/a/b", "outputs//store", "run:1/store", "./s3:/x"])
def test_what_a_store_opens_is_taken(url, minimal):
    assert parse_tree(tree_of(minimal, "opd", **{"store.url": url})).spec.store.url == url
