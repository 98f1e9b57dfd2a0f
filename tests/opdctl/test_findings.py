"""Runs found and shown as their records say: stores, names, times and states."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def test_the_default_store_is_that_of_a_local_run_and_stray_files_in_it_are_no_runs(
    inside: Callable, make_run: Callable, tmp_path: Path
) -> None:
    make_run("r", url=str(tmp_path / "outputs" / "store"))
    (tmp_path / "outputs" / "store" / "README.txt").write_text("hi")
    assert [line.split()[0] for line in inside("list").stdout.splitlines()] == ["run", "r"]
    assert inside("status", "r").returncode == 0


def test_blanks_signs_and_other_letters_are_kept_in_names_of_stores_runs_and_metrics(
    inside: Callable, make_run: Callable, tmp_path: Path
) -> None:
    store, name, metric = tmp_path / "my store #1 模型", "r 1#a 模型", "val-core/a b/c#数学/acc/mean@1"
    make_run(name, attempts=[{1: {metric: 0.5}}], url=str(store))
    assert f"\n{name} " in inside("list", "--store", store).stdout
    [record] = json.loads(inside("collect", "--store", store, "-o", "json").stdout)["runs"]
    assert (record["run_id"], record["validation_accuracy"]) == (name, 0.5)
    assert inside("report", "--store", store, "-f", "page.html").returncode == 0
    assert "c#数学" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("command", ["logs", "status", "collect"])
def test_the_nearest_name_is_proposed_for_a_wrong_one(
    command: str, inside: Callable, make_run: Callable, store: Path
) -> None:
    make_run("quickstart")
    done = inside(command, "quikstart", "--store", store)
    assert done.returncode == 1
    assert "did you mean quickstart?" in done.stderr


@pytest.mark.parametrize("command", ["status", "collect"])
def test_what_is_no_run_is_said_in_one_line(command: str, inside: Callable, store: Path) -> None:
    (store / "folder" / "run.json").mkdir(parents=True)
    (store / "README.md").write_text("hi")
    (store / "link").symlink_to(store / "gone")
    for name in ("folder", "README.md", "link"):
        done = inside(command, name, "--store", store)
        [said, fix] = done.stderr.splitlines()
        assert (done.returncode, f"{name} is no folder" in said, "opdctl list" in fix) == (1, True, True), done.stderr


def test_a_finished_run_reads_the_same_from_its_folder_a_copy_and_the_store(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    make_run("r", result={"steps": 1})
    shutil.copytree(store / "r", tmp_path / "copy" / "r", copy_function=shutil.copyfile)

    def seen(path: Path) -> tuple[str, float, list[float]]:
        tree = json.loads(inside("status", path, "-o", "json").stdout)
        record = tree["store"]
        return record["state"], record["last_sign_s"], [line["last_sign_s"] for line in tree["attempts"]]

    assert seen(store / "r")[0] == "succeeded"
    assert seen(store / "r") == seen(tmp_path / "copy" / "r")
    (tmp_path / "copy" / "r" / "result.json").unlink()
    assert seen(tmp_path / "copy" / "r")[0] == "succeeded", "its last attempt has finished"


def test_training_and_validation_accuracy_are_two_numbers(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("r", attempts=[{1: {"opd/accuracy": 0.25, "val-core/math/acc/mean@1": 0.5}}])
    [row] = json.loads(inside("list", "--store", store, "-o", "json").stdout)["runs"]
    [record] = json.loads(inside("collect", "r", "--store", store, "-o", "json").stdout)["runs"]
    for found in (row, record):
        assert (found["validation_accuracy"], found["training_accuracy"]) == (0.5, 0.25)


def test_a_delete_that_deletes_nothing_is_an_error(inside: Callable, make_run: Callable, store: Path) -> None:
    make_run("r")
    done = inside("delete", "r", "--store", store)
    assert done.returncode == 1
    assert "--results deletes its directory" in done.stderr
    assert inside("delete", "r", "--store", store, "--results", "--yes").returncode == 0
    assert not (store / "r").exists()
