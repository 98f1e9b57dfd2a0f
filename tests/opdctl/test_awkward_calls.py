"""Awkward calls: each ends with its exit code and with the cause on the first line, and none with a traceback."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opdctl.cli import app

from .test_store_commands import seal_checkpoint

DIGEST = f"registry.example/opd@sha256:{'0' * 64}"
EXPERIMENT = "kind: opd\nname: r\nmodel: {path: hub/s}\nteacher: {path: hub/t}\n"
CODES = (0, 1, 2)


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is missing, malformed, of a wrong type or unreadable."""
    folder = tmp_path_factory.mktemp("corner")
    (folder / "exp.yaml").write_text(EXPERIMENT)
    (folder / "list.yaml").write_text("[1, 2]")
    (folder / "broken.yaml").write_text("kind: [opd")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00kind")
    (folder / "empty.yaml").write_text("")
    (folder / "wrong.yaml").write_text("kind: opd\nmodel: 3\nteacher: {pth: t}\n")
    (folder / "file").write_text("no folder")
    (folder / "kube-broken").write_text("a: [b")
    (folder / "kube-list").write_text("[1, 2]")
    (folder / "kube-empty").write_text("")
    (folder / "kube-wrong").write_text("apiVersion: v1\nkind: Config\nclusters: 3\ncontexts: no\nusers: {}\n")
    server = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    tree = {"apiVersion": "v1", "kind": "Config", "clusters": [server], "contexts": [context],
            "users": [{"name": "u", "user": {}}], "current-context": "c"}  # fmt: skip
    (folder / "kube-away").write_text(json.dumps(tree))
    return folder


def calls() -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield (environment, words) of each call; `@` is the corner."""
    files = ["@/none.yaml", "@/list.yaml", "@/broken.yaml", "@/binary.yaml", "@/empty.yaml", "@/wrong.yaml", "@", "", "@/file/x.yaml"]  # fmt: skip
    for command, file in itertools.product(["render", "submit", "doctor"], files):
        yield {}, [command, file, *(["--no-cluster"] if command == "doctor" else [])]
    kubeconfigs = ["kube-broken", "kube-list", "kube-empty", "kube-wrong", "kube-away"]
    ofcluster = ["status r", "logs r", "wait r", "cancel r", "delete r", "collect r",
                 "submit @/exp.yaml", "list", "doctor -n x"]  # fmt: skip
    for kubeconfig, words in itertools.product(kubeconfigs, ofcluster):
        yield {"KUBECONFIG": f"@/{kubeconfig}"}, words.split()
    stores = ["@/nowhere", "@/file", "@/file/x", "://", "s3://user:secret@b/p", "nope://x", ""]
    ofstore = ["status r", "logs r", "wait r --timeout 60", "collect r", "list", "pull r", "compare a b", "report r"]
    for store, words in itertools.product(stores, ofstore):
        yield {}, [*words.split(), "--store", store]
    for words in ("x", "-1", "0", "nan"):
        yield {}, ["wait", "r", "--timeout", words]
    wrong = ["--no-such-flag", "--namespace", "extra words"]
    for command, words in itertools.product(["status r", "list", "collect r", "pull r"], wrong):
        yield {}, [*command.split(), *words.split()]
    sets = ["x", "=", "actor.learning_rate=", "actor.lerning_rate=1", "cluster.image.rf=x", "cluster=3", "seed=x", "cluster.gpu.type=[", "model={", "name=A B"]  # fmt: skip
    for text in sets:
        yield {}, ["render", "@/exp.yaml", "--image", DIGEST, "--set", text]
    for words in ("explain opd.los_type", "explain", "nonsense", "", "--version", "-h", "list -h",
                  "compare a", "logs r --attempt 0"):  # fmt: skip
        yield {}, words.split()


@pytest.mark.slow
def test_no_awkward_call_ends_with_a_traceback(inside: Callable, corner: Path) -> None:
    wrong, number, walked = [], 0, set()
    for environment, words in calls():
        number += 1
        walked.update(words[:1])
        filled = [word.replace("@", str(corner)) if word.startswith("@") else word for word in words]
        variables = {name: value.replace("@", str(corner)) for name, value in environment.items()}
        done = inside(*filled, **variables)  # what it does not turn into a message comes out here
        is_told = "error: " in done.stderr or "MISSING" in done.stdout or not words
        if done.returncode not in CODES or (done.returncode and not is_told):
            wrong.append(f"{variables} opdctl {' '.join(filled)}: {done.returncode} {done.stderr}")
    assert wrong == []
    assert number >= 170
    assert walked >= {command.name for command in app.registered_commands}


@pytest.mark.parametrize(
    "words",
    ["report r -f {}", "collect r -o csv -f {}", "collect r -o json -f {}", "pull r --step 1 --into {}",
     "pull r --folder attempts --into {}"],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_named(
    inside: Callable, make_run: Callable, store: Path, corner: Path, words: str
) -> None:
    make_run("r", result={"steps": 1})
    if "--step" in words:
        seal_checkpoint(store / "r", 1, {"data.pt": b"abc"})
    target = corner / "file" / "x"
    done = inside(*words.format(target).split(), "--store", store)
    assert done.returncode == 1, done.stderr
    assert str(corner / "file") in done.stderr.splitlines()[-1]
    assert "damaged" not in done.stderr


def test_a_store_that_is_not_there_and_an_attempt_that_never_was_are_failures(
    inside: Callable, make_run: Callable, store: Path, tmp_path: Path
) -> None:
    gone = inside("list", "--store", tmp_path / "nope")
    assert gone.returncode == 1
    assert "there is no such folder" in gone.stderr
    make_run("r", log="a line\n")
    never = inside("logs", "r", "--store", store, "--attempt", 9)
    assert never.returncode == 1
    assert "has no attempt 9" in never.stderr
    assert "its attempts: 1" in never.stderr


def test_a_key_of_cluster_is_set_like_any_other_and_a_typo_meets_the_nearest_key(
    inside: Callable, corner: Path
) -> None:
    from opdctl.chart.values import load_experiments

    [found] = load_experiments(
        corner / "exp.yaml", env={}, sets=[f"cluster.image.ref={DIGEST}", "cluster.worker.shmGib=64"]
    )  # fmt: skip
    assert found.values["cluster"] == {"image": {"ref": DIGEST}, "worker": {"shmGib": 64}}
    done = inside("render", corner / "exp.yaml", "--set", "cluster.gpu.tipe=x")
    assert done.returncode == 2
    assert "did you mean cluster.gpu.type?" in done.stderr


@pytest.mark.parametrize("command", [command.name for command in app.registered_commands])
def test_wrong_usage_of_every_command_is_exit_code_2_and_one_line_with_the_cause_first(
    inside: Callable, command: str
) -> None:
    calls = [[command, "--no-such-flag"], [command, "a", "b", "c", "d", "--timeout", "x"]]
    for words in calls:
        done = inside(*words)
        cause, fix = done.stderr.splitlines()
        assert done.returncode == 2
        assert cause.startswith("error: ")
        assert fix == f"  fix: `opdctl {command} --help` shows the options"
        assert done.stdout == ""


@pytest.mark.parametrize(
    "words",
    ["status r", "logs r", "wait r", "cancel r", "delete r", "collect r",
     "pull r", "compare r s", "report r", "list", "submit @/exp.yaml", "doctor @/exp.yaml"],
)  # fmt: skip
def test_what_does_not_answer_is_exit_code_1_of_every_command(inside: Callable, corner: Path, words: str) -> None:
    filled = words.replace("@", str(corner)).split()
    done = inside(*filled, "-n", "x", KUBECONFIG=str(corner / "kube-away"))
    assert done.returncode == 1, done.stderr
    assert "127.0.0.1:1" in done.stderr.splitlines()[0] if done.stderr else "MISSING" in done.stdout
