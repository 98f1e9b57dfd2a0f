"""Values by themselves: types, ranges, and names that KubeRay takes."""

import pytest
from tests.experiment.trees import problems_of, tree_of

from opd.experiment import parse_tree


@pytest.mark.parametrize("value", ["", "A", "1a", "a-", "-a", "a_b", "ä", "a\n", "a" * 48])
def test_a_name_that_kuberay_refuses_is_refused(value, minimal):
    (problem,) = problems_of({**minimal("opd"), "name": value})
    assert problem.path == "name"
    assert "DNS-1035" in problem.rule


@pytest.mark.parametrize(
    ("path", "value"),
    [("rollout.top_k", 0), ("rollout.top_k", -2), ("rollout.top_p", 0), ("rollout.temperature", 0),
     ("actor.betas", [0.9, 1.0]), ("actor.betas", [0.9]), ("seed", 2**31), ("trainer.loggers", []), ("data.train", [None]),
     ("data.train_batch_size", True), ("data.train_batch_size", "8"), ("data.train_batch_size", 8.5),
     ("data.enable_thinking", 1), ("model.path", 5), ("model.path", ""), ("env", {"A": 1}), ("env", {"A B": "x"}),
     ("rollout.engine_kwargs", {"a=b": 1}),
     ("model.lora", {"rank": 4, "target_modules": ["lm_head"]}),
     ("model.lora", {"rank": 4, "target_modules": ["model.embed_tokens"]})],
)  # fmt: skip
def test_a_value_of_the_wrong_type_or_range_is_refused(path, value, minimal):
    (problem,) = problems_of(tree_of(minimal, "opd", **{path: value}))
    assert problem.path.startswith(path)


@pytest.mark.parametrize("url", ["s3:/bucket/x", "S3://bucket/x", "s3://", "minio://x/y", "file:/x", " s3://b/x"])
@pytest.mark.parametrize("kind", ["opd", "convert", "pipeline"])
def test_a_mistyped_url_is_refused_once(kind, url, minimal):
    [problem] = problems_of(tree_of(minimal, kind, **{"store.url": url}))
    assert (problem.path, problem.value) == ("store.url", url)
    assert "s3://BUCKET/PREFIX" in problem.fix


@pytest.mark.parametrize("url", ["s3://bucket/a/b", "file:///x", "/a/b", "outputs//store", "run:1/store", "./s3:/x"])
def test_what_a_store_opens_is_taken(url, minimal):
    assert parse_tree(tree_of(minimal, "opd", **{"store.url": url})).spec.store.url == url
