"""What the shell offers: commands, runs of store and cluster, keys; and nothing, quietly, where there is nothing."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import typer

from opdctl import completion, console
from opdctl.console import deadline


@pytest.fixture
def offered(inside: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """The words that bash is given for a line whose last word is half typed (`""`: not begun), however slow the machine."""
    monkeypatch.setattr(completion, "PATIENCE_S", 120.0)
    monkeypatch.setattr(completion, "FIRST_S", 120.0)

    def complete(*words: object, **environment: str) -> list[str]:
        line = ["opdctl", *map(str, words)]
        variables = {
            "_OPDCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(line),
            "COMP_CWORD": str(len(line) - 1),
        }
        done = inside(**variables, **environment)
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout.split()

    return complete


def test_the_shell_completes_commands(offered: Callable) -> None:
    found = offered("su")
    assert {"submit", "suspend"} <= set(found)
    assert "render" not in found


def test_the_shell_completes_runs_of_the_store_that_the_line_or_the_shell_names(
    offered: Callable, make_run: Callable, store: Path
) -> None:
    for name in ("base-s1", "base-s2", "other"):
        make_run(name)
    assert offered("status", "--store", store, "base") == ["base-s1", "base-s2"]
    assert offered("logs", "", OPDCTL_STORE=str(store)) == ["base-s1", "base-s2", "other"]
    assert offered("collect", "base-s1", "o", OPDCTL_STORE=str(store)) == ["other"]


def test_the_shell_completes_keys_of_the_experiment(offered: Callable) -> None:
    assert "opd.loss_type" in offered("explain", "opd.loss")
    assert offered("render", "exp.yaml", "--set", "actor.learning_r") == ["actor.learning_rate="]


@pytest.mark.parametrize("place", ["/dev/null/x", "nope://x", "s3://user:secret@bucket"])
def test_where_nothing_can_be_read_the_shell_is_offered_nothing_and_the_line_stays_clean(
    offered: Callable, tmp_path: Path, place: str
) -> None:
    (tmp_path / "kubeconfig").write_text("a: [b")
    assert offered("status", "--store", place, "", KUBECONFIG=str(tmp_path / "kubeconfig")) == []


def test_names_are_offered_again_without_asking_and_where_nobody_answers(
    offered: Callable, make_run: Callable, store: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "FRESH_S", 1e9)
    make_run("base-s1")
    assert offered("status", "--store", store, "") == ["base-s1"]
    make_run("new")
    assert offered("status", "--store", store, "") == ["base-s1"], "nobody was asked"
    kept = [path for path in (own_cache / "names").iterdir() if json.loads(path.read_text())]
    for path in kept:
        os.utime(path, (0, 0))
    assert offered("status", "--store", store, "") == ["base-s1", "new"]
    for path in kept:
        os.utime(path, (0, 0))
    store.rename(store.with_name("away"))
    store.write_text("no folder: the store is away")
    assert offered("status", "--store", store, "") == ["base-s1", "new"]


def test_cluster_and_store_that_do_not_answer_share_one_person_s_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def noted(timeout_s: float) -> contextlib.AbstractContextManager[None]:
        given.append(timeout_s)
        return deadline(timeout_s)

    monkeypatch.setattr(console, "deadline", noted)
    monkeypatch.setattr(completion, "FIRST_S", 0.2)
    for source in ("_in_cluster", "_in_store"):
        monkeypatch.setattr(completion, source, lambda ctx: [str(threading.Event().wait(60))])
    assert completion.complete_run(cast(typer.Context, SimpleNamespace(params={})), "") == []
    assert len(given) == 2
    assert given[1] == completion.LEAST_S, "the first took it all"
