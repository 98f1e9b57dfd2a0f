"""Shared pieces of the run-directory tests: local stores, saved steps, real child processes and a real S3 server."""

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opd
from opd.runs import attempts, stream
from opd.runs.checkpoints import Checkpoints, ResumeDecision
from opd.runs.manifest import DRIVER_RANK, Manifest
from opd.runs.run import Run
from opd.runs.shards import fetch_shards, upload_shards
from opd.store.base import RetryPolicy, Store
from opd.store.local import LocalStore
from opd.store.transfer import find_problems

SOURCE_ROOT = Path(opd.__file__).parent.parent
IMPATIENT = RetryPolicy(max_elapsed_s=0.0)


@pytest.fixture
def local_store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "run", policy=IMPATIENT)


@pytest.fixture
def open_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Opens run `r` under `tmp_path/local`, without a wait for a living owner; keyword arguments override."""
    monkeypatch.setattr(attempts, "LEASES_TO_WAIT", 0.0)
    monkeypatch.setattr(stream, "FLUSH_INTERVAL_S", 0.05)

    def open_it(*, lease_ttl_s: float = attempts.LEASE_TTL_S, **overrides: object) -> Run:
        monkeypatch.setattr(attempts, "LEASE_TTL_S", lease_ttl_s)
        options: dict[str, object] = {
            "run_id": "r",
            "local_root": tmp_path / "local",
            "spec": {"kind": "opd", "seed": 1},
            "spec_hash": "hash-1",
            "tee": False,
            "policy": IMPATIENT,
        }
        return Run.open(**{**options, **overrides})  # type: ignore[arg-type]

    return open_it


@pytest.fixture
def make_checkpoints(tmp_path: Path) -> Callable[..., Checkpoints]:
    """The checkpoints of one attempt in `tmp_path/local` and, unless `remote=None`, in `tmp_path/store`."""

    def make(
        *, attempt: int = 1, remote: Store | str | None = "store", local: str = "local", spec_hash: str = "hash-1"
    ) -> Checkpoints:
        if isinstance(remote, str):
            remote = LocalStore(tmp_path / remote, policy=IMPATIENT)
        return Checkpoints(
            local=LocalStore(tmp_path / local, policy=IMPATIENT),
            remote=remote,
            attempt=attempt,
            spec_hash=spec_hash,
        )

    return make


def write_step(folder: Path, step: int, *, num_ranks: int = 1) -> None:
    """Files with verl's names, whose bytes tell the step and the rank."""
    for name, content in step_content(step, num_ranks=num_ranks).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def step_content(step: int, *, num_ranks: int = 1) -> dict[str, bytes]:
    content = {"data.pt": f"position {step}".encode(), "actor/huggingface/config.json": b"{}"}
    for rank in range(num_ranks):
        for part in ("model", "optim", "extra_state"):
            content[f"actor/{part}_world_size_{num_ranks}_rank_{rank}.pt"] = f"{part} {step} {rank} ".encode() * 500
    return content


def read_content(folder: Path) -> dict[str, bytes]:
    """Return the files that a loader would find: neither hidden files nor the seal."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and path.name not in ("manifest.json", "COMPLETE")
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def chosen(checkpoints: Checkpoints) -> ResumeDecision:
    """Choose as a trainer whose ranks all run on this machine."""

    def fetch(manifest: Manifest, url: str | None) -> list[str]:
        return fetch_shards(step_dir=checkpoints.folder(manifest.step), manifest=manifest, store_url=url)

    return checkpoints.choose(fetch)


def upload_missing(checkpoints: Checkpoints) -> list[int]:
    """Upload as such a trainer."""

    def upload(manifest: Manifest, url: str | None) -> list[str]:
        folder, files = checkpoints.folder(manifest.step), [entry.path for entry in manifest.files]
        problems = list(find_problems(folder, manifest.files).values())
        options = {"step_dir": folder, "store_url": url, "files": files, "policy": IMPATIENT}
        return problems or [
            text for text in [upload_shards(rank=0, step=manifest.step, **options).upload_error] if text
        ]

    return checkpoints.upload_missing(upload)


@pytest.fixture
def save_step() -> Callable[..., None]:
    """Saves a whole step the way a trainer does: begin, files, each rank's report, finalise."""

    def save(checkpoints: Checkpoints, step: int, *, num_ranks: int = 1) -> None:
        assert checkpoints.begin(step)
        folder = checkpoints.folder(step)
        write_step(folder, step, num_ranks=num_ranks)
        url = checkpoints.remote.url if checkpoints.remote is not None else None
        reports = [
            upload_shards(rank=rank, step=step, step_dir=folder, store_url=url, policy=IMPATIENT)
            for rank in (DRIVER_RANK, *range(num_ranks))
        ]
        checkpoints.finalise(step, reports)

    return save


class Child:
    """One real Python process running a script; its output goes to a file, so that no pipe can fill up."""

    def __init__(self, script: str, arguments: tuple[str, ...], output: Path, environment: dict[str, str]):
        self.output = output
        path = os.pathsep.join([str(SOURCE_ROOT), str(Path(__file__).parent)])
        with open(output, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(script), *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, "PYTHONPATH": path},
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait(self, timeout_s: float = 150) -> int:
        return self.process.wait(timeout_s)

    def wait_for(self, marker: str, timeout_s: float = 150) -> None:
        wait_until(lambda: marker in self.text or self.process.poll() is not None, timeout_s)
        assert marker in self.text, self.text


def wait_until(condition: Callable[[], bool], timeout_s: float = 150) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def until() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def start_child(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Start a script in a process of its own; kill by its pid what still runs at the end of the test."""
    children: list[Child] = []

    def start(script: str, *arguments: object, **environment: str) -> Child:
        output = tmp_path / f"child-{len(children)}.txt"
        children.append(Child(script, tuple(map(str, arguments)), output, environment))
        return children[-1]

    yield start
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()


@pytest.fixture
def away(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """The store is unreachable within the block: a file is in the place of its folder."""

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        (tmp_path / "store").rename(tmp_path / "away")
        (tmp_path / "store").write_text("no folder")
        yield
        (tmp_path / "store").unlink()
        (tmp_path / "away").rename(tmp_path / "store")

    return block
