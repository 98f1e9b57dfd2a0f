"""Kind convert as a run: claimed, finished once."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants
from tests.convert.checkpoints import Case

from opd import convert
from opd.convert import run
from opd.convert.__main__ import main
from opd.experiment.load import load_text

pytestmark = pytest.mark.slow
EARLIER = ("merges.txt", "model-00001-of-00002.safetensors", "notes.md")
CASE = Case(tied=False, dtype="float32", world_size=2)


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """Return the lines of a conversion about its end."""
    found: list[str] = []
    monkeypatch.setattr(convert, "say", found.append)
    return found


class _Hub(BaseHTTPRequestHandler):
    """The calls of an upload of small files: `status` answers the creation, `calls` are (path, token, content)."""

    status = 200
    calls: tuple[tuple[str, str, bytes], ...] = ()

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        type(self).calls += ((self.path, self.headers["authorization"], content),)
        name = self.path.split("/")[-2 if self.path.endswith("/main") else -1]
        url = f"{constants.ENDPOINT}/me/model"
        answers = {"create": {"url": url}, "commit": {"commitUrl": f"{url}/commit/1", "commitOid": "1"}}
        if name == "preupload":
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(content)["files"]]
            answers[name] = {"files": files}
        self._answer(answers.get(name, {}), self.status if name == "create" else 200)

    def do_GET(self) -> None:
        self._answer([{"type": "file", "path": name, "size": 1, "oid": "1"} for name in EARLIER], 200)

    def _answer(self, content: object, status: int) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch):
    """Return a hub on this machine, which huggingface_hub talks to."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server.RequestHandlerClass
    server.shutdown()
    server.server_close()


def _spec(tmp_path: Path, checkpoint: Path, **convert: str):
    text = json.dumps(
        {
            "kind": "convert",
            "name": "to-hf",
            "convert": {"checkpoint": str(checkpoint), **convert},
            "output": {"root": str(tmp_path / "out")},
            "store": {"url": str(tmp_path / "store")},
        }
    )
    return load_text(text, is_json=True).spec


def test_a_second_start_finds_the_work_done_unless_it_is_gone_or_wanted_elsewhere(sealed, tmp_path, said):
    step_dir = sealed(CASE)
    spec = _spec(tmp_path, step_dir)
    assert run(spec) == 0
    assert run(spec) == 0
    assert "finished in attempt 1" in said[0]
    assert run(_spec(tmp_path, step_dir, target=str(tmp_path / "b"))) == 1
    assert f"wanted now is {tmp_path / 'b'}" in said[-1]
    (Path(f"{step_dir}-huggingface") / "config.json").unlink()
    assert run(spec) == 1


def test_an_incomplete_checkpoint_ends_the_attempt_but_not_the_run(sealed, tmp_path, said):
    step_dir = sealed(CASE)
    complete = (step_dir / "COMPLETE").read_bytes()
    (step_dir / "COMPLETE").unlink()
    spec = _spec(tmp_path, step_dir)
    assert run(spec) == 1
    assert "has no COMPLETE" in said[0]
    (step_dir / "COMPLETE").write_bytes(complete)
    assert run(spec) == 0
    assert sorted(path.name for path in (tmp_path / "store" / "to-hf" / "attempts").iterdir()) == ["0001", "0002"]


def test_a_model_goes_to_a_private_repository_and_stays_whole_where_the_hub_rejects_it(
    sealed, tmp_path, said, monkeypatch, hub
):
    step_dir = sealed(CASE)
    assert main([str(step_dir), "--push-to-hub", "model"]) == 2, "no OWNER/NAME"
    assert main([str(step_dir), "--push-to-hub", "me/a--b"]) == 2, "found before the work"
    spec = _spec(tmp_path, step_dir, target=str(tmp_path / "model"), push_to_hub="me/model")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert run(spec) == 2
    assert "push_to_hub needs HF_TOKEN in the environment" in said[-1]
    assert not (tmp_path / "model").exists()
    monkeypatch.setenv("HF_TOKEN", "own-token\n")
    hub.status = 403
    assert run(spec) == 1
    assert "is whole, but the hub did not take me/model" in said[-1]
    assert "\n" not in said[-1]
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "README.md", "model.safetensors"} <= files
    hub.status, hub.calls = 200, ()
    assert run(spec) == 0
    assert {token for _, token, _ in hub.calls} == {"Bearer own-token"}
    assert json.loads(hub.calls[0][2]) == {"name": "model", "organization": "me", "visibility": "private"}
    commit = [json.loads(line) for line in hub.calls[-1][2].splitlines()]
    assert {line["value"]["path"] for line in commit if line["key"] == "file"} == files - {"conversion.json"}
    deleted = [line["value"]["path"] for line in commit if line["key"] == "deletedFile"]
    assert deleted == ["merges.txt", "model-00001-of-00002.safetensors"], "a user's own files stay"
    assert run(spec) == 0, "uploaded before"
    assert run(_spec(tmp_path, step_dir, target=str(tmp_path / "model"), push_to_hub="me/other")) == 1
    assert "wanted now is" in said[-1]
    assert "me/other of the hub" in said[-1]
