"""What an experiment names by a store URL is local before anything heavy starts."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from opd.config import parse_tree
from opd.config.run_config import KEY, RunConfig, RunFacts
from opd.inputs import locations


@pytest.fixture
def fetched(monkeypatch):
    urls = []

    def local_copy(url):
        urls.append(url)
        return f"/cache/{url.rpartition('/')[2]}"

    monkeypatch.setattr(locations, "local_copy", local_copy)  # from a real server: tests/runs/s3/test_fetch.py
    return urls


def config(*, model, teacher, train, val):
    tree = {"kind": "opd", "model": {"path": model}, "teacher": {"path": teacher}}
    return OmegaConf.create(
        {
            "data": {"train_files": train, "val_files": val},
            "actor_rollout_ref": {"model": {"path": model}},
            KEY: RunConfig(spec=parse_tree(tree).spec, run=RunFacts(run_id="r", run_dir=None)).text(),
        }
    )


def test_store_urls_give_way_to_local_paths_and_the_models_are_told_to_other_nodes(fetched):
    it = config(model="s3://b/student", teacher="gs://b/teacher", train=["s3://b/x.parquet"], val="s3://b/y.parquet")
    models = locations.resolve_store_urls(it)
    assert models == {"s3://b/student": "/cache/student", "gs://b/teacher": "/cache/teacher"}
    assert (it.actor_rollout_ref.model.path, RunConfig.of(it).teacher_paths) == (
        "/cache/student",
        {"teacher": "/cache/teacher"},
    )
    assert (list(it.data.train_files), list(it.data.val_files)) == (["/cache/x.parquet"], ["/cache/y.parquet"])


def test_folders_hugging_face_ids_and_bundled_names_stay_as_they_are(fetched):
    it = config(
        model="Qwen/Qwen3-8B",
        teacher="/claim/teacher",
        train=["toy://train", "/claim/a.parquet"],
        val=["data/b.parquet"],
    )
    assert locations.resolve_store_urls(it) == {}
    assert fetched == []
    assert it.actor_rollout_ref.model.path == "Qwen/Qwen3-8B"
    assert list(it.data.train_files) == ["toy://train", "/claim/a.parquet"]
