"""Awkward calls: each ends with its exit code and with the cause on the first line, and none with a traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from opdctl.cli import NAMES

DIGEST = f"registry.example/opd@sha256:{'0' * 64}"
EXPERIMENT = "kind: opd\nname: r\nmodel: {path: hub/s}\nteacher: {path: hub/t}\n"


@pytest.fixture(scope="module")
def corner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is missing, malformed, of a wrong type or unreadable."""
    folder = tmp_path_factory.mktemp("corner")
    texts = {
        "exp.yaml": EXPERIMENT, "list.yaml": "[1, 2]", "broken.yaml": "kind: [opd", "empty.yaml": "", "file": "no folder",
        "wrong.yaml": "kind: opd\nmodel: 3\nteacher: {pth: t}\n", "kube-broken": "a: [b", "kube-list": "[1, 2]", "kube-empty": "",
        "kube-wrong": "apiVersion: v1\nkind: Config\nclusters: 3\ncontexts: no\nusers: {}\n",
    }  # fmt: skip
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00kind")
    server = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    tree = {"apiVersion": "v1", "kind": "Config", "clusters": [server], "contexts": [context],
            "users": [{"name": "u", "user": {}}], "current-context": "c"}  # fmt: skip
    (folder / "kube-away").write_text(json.dumps(tree))
    return folder


FILES = ("none.yaml", "list.yaml", "broken.yaml", "binary.yaml", "empty.yaml", "wrong.yaml", "", "file/x.yaml")
STORES = ("@/nowhere", "@/file", "@/file/x", "://", "s3://user:secret@b/p", "nope://x")
SETS = (
    "x",
    "=",
    "actor.learning_rate=",
    "actor.lerning_rate=1",
    "cluster.image.rf=x",
    "cluster=3",
    "cluster.gpu.type=[",
    "model={",
)
CALLS = [
    *(("", f"{command} @/{file}") for command in ("render", "submit", "doctor") for file in FILES),
    *((f"kube-{name}", f"{command} -n x") for name in ("broken", "list", "empty", "wrong", "away")
      for command in ("status r", "list", "collect r", "delete r", "submit @/exp.yaml", "doctor")),
    *(("", f"{command} --store {store}") for store in STORES
      for command in ("status r", "logs r", "list", "compare a b", "report r")),
    *(("", f"render @/exp.yaml --set cluster.image.ref={DIGEST} --set {text}") for text in SETS),
    *(("", words) for words in ("nonsense", "logs r --tail 0", "compare a", "keys opd.los_type")),
]  # fmt: skip


@pytest.mark.slow
def test_no_awkward_call_ends_with_a_traceback(inside: Callable, corner: Path) -> None:
    wrong = []
    for kubeconfig, words in CALLS:
        filled = words.replace("@/", f"{corner}/").split()
        # What it does not turn into a message comes out here.
        done = inside(*filled, **({"KUBECONFIG": f"{corner}/{kubeconfig}"} if kubeconfig else {}))
        is_told = "error: " in done.stderr or "MISSING" in done.stdout
        if done.returncode not in (1, 2) or not is_told or "secret" in done.stderr.replace("secrets", ""):
            wrong.append(f"{kubeconfig} opdctl {words}: {done.returncode} {done.stderr}")
    assert wrong == []


@pytest.mark.parametrize(
    "words",
    ["report r -f {}", "collect r -o csv -f {}", "collect r -o json -f {}"],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_named(
    inside: Callable, make_run: Callable, store: Path, corner: Path, words: str
) -> None:
    make_run("r", result={"steps": 1})
    target = corner / "file" / "x"
    done = inside(*words.format(target).split(), "--store", store)
    assert done.returncode == 1, done.stderr
    assert str(corner / "file") in done.stderr.splitlines()[-1]
    assert "damaged" not in done.stderr


@pytest.mark.parametrize("command", NAMES)
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
