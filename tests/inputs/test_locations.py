"""Inputs that an experiment names by a store URL are local before anything heavy starts."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from opd.errors import StoreUnavailable
from opd.experiment import SpecError, parse_tree
from opd.experiment.run_config import KEY, RunConfig, RunFacts
from opd.inputs import fetch, locations
from opd.inputs.fetch import NothingThere
from opd.trainer.entry import compose, prepare


@pytest.fixture
def fetched(monkeypatch):
    urls = []

    def local_copy(url):
        urls.append(url)
        return f"/cache/{url.rpartition('/')[2]}"

    monkeypatch.setattr(fetch, "local_copy", local_copy)  # from a real server: tests/runs/s3/test_fetch.py
    return urls


def config(*, model, teacher, train, val):
    tree = {"kind": "opd", "model": {"path": model}, "teacher": {"path": teacher}}
    ours = RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir="out/r")).text()
    data, role = {"train_files": train, "val_files": val}, {"model": {"path": model}}
    return OmegaConf.create({"data": data, "actor_rollout_ref": role, KEY: ours})


def test_store_urls_give_way_to_local_paths_and_the_models_are_told_to_other_nodes(fetched):
    it = config(model="s3://b/student", teacher="gs://b/teacher", train=["s3://b/x.parquet"], val="s3://b/y.parquet")
    models = locations.resolve(it, Path("out"))
    assert models == {"s3://b/student": "/cache/student", "gs://b/teacher": "/cache/teacher"}
    assert it.actor_rollout_ref.model.path == "/cache/student"
    assert RunConfig.of(it).teacher_paths == {"teacher": "/cache/teacher"}
    assert (list(it.data.train_files), list(it.data.val_files)) == (["/cache/x.parquet"], ["/cache/y.parquet"])


@pytest.mark.parametrize(
    ("given", "key"),
    [("train", "data.train"), ("val", "data.val"), ("model", "model.path"), ("teacher", "teacher.path")],
)
def test_a_url_with_nothing_behind_it_is_a_fault_of_its_key_and_a_store_that_is_away_is_none(monkeypatch, given, key):
    url, raised = "s3://b/modl", NothingThere("nothing")

    def local_copy(asked):
        assert asked == url
        raise raised

    monkeypatch.setattr(fetch, "local_copy", local_copy)
    values = {"model": "m", "teacher": "t", "train": ["a.parquet"], "val": ["b.parquet"]}
    values[given] = url if isinstance(values[given], str) else [url]
    with pytest.raises(SpecError) as refused:
        locations.resolve(config(**values), Path("out"))
    [problem] = refused.value.problems
    assert (problem.path, problem.value, problem.fix) == (key, url, "check the path and the bucket")
    raised = StoreUnavailable("away")
    with pytest.raises(StoreUnavailable):
        locations.resolve(config(**values), Path("out"))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["train", "val"])
def test_a_fault_in_a_fetched_folder_of_data_has_the_users_own_key_and_url(monkeypatch, tmp_path, key):
    for name in ("a.parquet", "b.jsonl", ".opd-fetched.json"):
        (tmp_path / name).touch()
    monkeypatch.setattr(fetch, "local_copy", lambda url: str(tmp_path))
    data = {"train": ["toy://train"], "val": ["toy://heldout"], key: ["s3://b/data"]}
    data |= {"max_prompt_length": 32, "max_response_length": 8}
    tree = {"kind": "opd", "device": "cpu", "model": {"path": "toy://student"}, "teacher": {"path": "toy://teacher"}}
    with pytest.raises(SpecError) as refused:
        prepare(compose(parse_tree(tree | {"data": data}).spec, RunFacts(run_id="r", run_dir=str(tmp_path / "run"))))
    [problem] = refused.value.problems
    assert (problem.path, problem.value) == (f"data.{key}", "s3://b/data")
    assert "cannot be read as Parquet" in problem.rule
