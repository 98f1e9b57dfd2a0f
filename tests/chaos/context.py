"""The context of a scenario: its folder, the uninterrupted run to compare with, and runs that it starts and breaks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import marks
from tests.chaos.attempt import ROOT, RUN_ID, SPEC, Attempt, require
from tests.chaos.compare import Places, differences
from tests.processes import MARK
from tests.runs.s3 import server as s3

from opd.runs.manifest import complete_steps
from opd.store.local import LocalStore
from opd.store.remote import open_store


@dataclass(kw_only=True)
class Case:
    """One run under attack: a working directory in which the same command is started again and again.

    Args:
        ray_folder: Ray's files of all attempts; a short path, since it holds sockets.
        sets: `key=value` for the spec.
        overrides: verl's own keys, as `--` takes them.
    """

    folder: Path
    ray_folder: Path
    sets: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    store_url: str = ""
    spec: Path = SPEC
    overrides: Sequence[str] = ()
    num_starts: int = 0
    started: list[Attempt] = field(default_factory=list)

    @property
    def places(self) -> Places:
        local = LocalStore(self.folder / "out" / RUN_ID)
        return Places(local=local, store=open_store(self.store_url or self.folder / "store").child(RUN_ID))

    def start(self, *sets: str, freeze_at: str = "") -> Attempt:
        """Start the same command once more; `sets` must not change what the run is, `freeze_at`: see `marks`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = 1 + len(list(self.folder.glob("attempt-*.log")))
        words = [sys.executable, "-m", "opd.launch", str(self.spec)]
        for item in (*([f"store.url={self.store_url}"] if self.store_url else []), *self.sets, *sets):
            words += ["--set", item]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(str(part) for part in (ROOT / "src", ROOT)),
            "RAY_TMPDIR": str(self.ray_folder),
            "RAY_worker_niceness": "0",  # 15 by default: on a busy machine the workers would hardly run next to other work
            "VERL_USE_EXTERNAL_MODULES": marks.__name__,
            marks.FILE: str(self.folder / f"attempt-{number}.marks"),
            marks.FREEZE_AT: freeze_at,
            MARK: (tag := uuid.uuid4().hex),
            **self.environment,
        }
        words += ["--", *self.overrides]
        with (self.folder / f"attempt-{number}.log").open("wb") as log:
            process = subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, env=environment)
        self.num_starts += 1
        self.started.append(Attempt(folder=self.folder, number=number, process=process, tag=tag))
        return self.started[-1]

    def finish(self, *sets: str) -> Attempt:
        """A start that must end well."""
        attempt = self.start(*sets)
        code = attempt.wait()
        require(code == 0, f"attempt {attempt.number} ended with {code}: {last_lines(attempt)}")
        attempt.must_leave_nothing()
        return attempt

    def newest_complete(self) -> int | None:
        """The newest step with COMPLETE in any place."""
        places = self.places
        return max(complete_steps([places.local, places.store]), default=None)

    def must_have_resumed(self, attempt: Attempt, step: int | None) -> None:
        """Raise Broken unless the attempt continued from exactly this step. None means from the beginning."""
        wanted = "starting from the beginning" if step is None else f"resuming from step {step} "
        require(wanted in attempt.output, f"attempt {attempt.number} did not say {wanted!r}: {last_lines(attempt)}")

    def finish_from_newest(self, attempt: Attempt) -> int | None:
        """Run on to the end from the newest complete step, which is returned, after an attempt that leaves nothing."""
        attempt.must_leave_nothing()
        newest = self.newest_complete()
        self.must_have_resumed(self.finish(), newest)
        return newest

    def end(self) -> None:
        for attempt in self.started:
            attempt.end()


@dataclass(kw_only=True)
class Context:
    """One scenario's folder and the runs that several scenarios share."""

    folder: Path
    shared: Shared
    cases: list[Case] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.shared.say(f"  {text}")

    def case(self, name: str, **options) -> Case:
        """A fresh run in a folder of its own."""
        case = Case(folder=self.folder / name, ray_folder=self.shared.ray_folder, **options)
        self.cases.append(case)
        return case

    def copy_of_unfinished(self, name: str) -> Case:
        """A run that was killed after its last checkpoint and before its result.json, in a folder of its own."""
        original = self.shared.unfinished()
        case = self.case(name)
        shutil.copytree(original.folder, case.folder)
        case.num_starts = original.num_starts
        return case

    def must_equal_reference(self, case: Case) -> None:
        """Raises Broken with what differs from the uninterrupted run."""
        self.must_equal(self.shared.reference().places, case.places, num_starts=case.num_starts)

    def must_equal(self, wanted: Places, found: Places, *, num_starts: int, same_spec: bool = True) -> None:
        """Raises Broken with what differs between two finished runs."""
        lines = differences(wanted, found, num_starts=num_starts, same_spec=same_spec)
        require(not lines, f"not equal to the uninterrupted run: {'; '.join(lines[:3])} ({len(lines)} differences)")

    @contextlib.contextmanager
    def s3_store(self) -> Iterator[tuple[s3.FailingProxy, str, dict[str, str]]]:
        """A proxy before a real S3 server, a URL in it, and the environment of a client behind the proxy.

        This process itself talks to the server past the proxy.
        """
        with s3.running_server(self.folder / "s3") as port, s3.FailingProxy(server_port=port).running() as proxy:
            before = {name: os.environ.pop(name, None) for name in (*s3.FOREIGN_VARIABLES, *s3.environment(port))}
            os.environ.update(s3.environment(port))
            s3.clear_clients()
            try:
                yield proxy, f"s3://{s3.BUCKET}/runs", s3.environment(proxy.port)
            finally:
                for name, value in before.items():
                    os.environ.pop(name, None)
                    if value is not None:
                        os.environ[name] = value
                s3.clear_clients()

    def end(self) -> None:
        """Leave no process of this scenario running."""
        for case in self.cases:
            case.end()


@dataclass(kw_only=True)
class Shared:
    """The runs that all scenarios refer to, made when first asked for."""

    folder: Path
    seed: int
    say: Callable[[str], None]
    ray_folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="chaos-")))
    _reference: Case | None = None
    _unfinished: Case | None = None

    def reference(self) -> Case:
        """The uninterrupted run."""
        if self._reference is None:
            self.say("the uninterrupted run")
            case = self._case("reference")
            case.finish()
            self._reference = case
        return self._reference

    def unfinished(self) -> Case:
        """A run killed between its last checkpoint and result.json; scenarios work on copies of its folder."""
        if self._unfinished is None:
            self.say("a run that is killed between its last checkpoint and result.json")
            case = self._case("unfinished")
            attempt = case.start(freeze_at="finish:1")
            attempt.must_freeze_at("finish")
            attempt.kill_tree()
            attempt.must_leave_nothing()
            require(not case.places.store.exists("result.json"), "the kill came too late: result.json is there")
            self._unfinished = case
        return self._unfinished

    def end(self) -> None:
        """Remove Ray's files and end every process that still runs."""
        for case in (self._reference, self._unfinished):
            if case is not None:
                case.end()
        shutil.rmtree(self.ray_folder, ignore_errors=True)

    def _case(self, name: str) -> Case:
        return Case(folder=self.folder / name, ray_folder=self.ray_folder)


def last_lines(attempt: Attempt, count: int = 3) -> str:
    """The end of an attempt's output in one line, for messages."""
    lines = [line.strip() for line in attempt.output.splitlines() if line.strip()]
    return f"{' | '.join(lines[-count:])[-600:]} (see {attempt.log})"
