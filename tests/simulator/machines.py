"""The machines of a schedule: what happens to them and to their processes, and what is true of them."""

import contextlib
from typing import Any

from tests.simulator.bucket import Bucket
from tests.simulator.disk import Disk
from tests.simulator.oracle import Oracle
from tests.simulator.paths import STEP, STORED, sealed_files
from tests.simulator.plan import Plan
from tests.simulator.scheduler import EPOCH_S, Machine, Process, Scheduler

MAX_ATTEMPTS = 12


class Machines(Scheduler):
    """Machines, their shared disk and the bucket; `World` decides when something happens to them."""

    plan: Plan
    oracle: Oracle
    bucket: Bucket
    shared: Disk
    machines: list[Machine]
    is_calm: bool
    has_clock_jumped: bool
    _next_pid: int
    _num_attempts: int
    _start: Any
    _places: Any

    # ---- events ----------------------------------------------------------------------------------------------------

    def _happen(self, kind: str, process: Process) -> None:
        draw = self.random
        machine = process.machine
        if kind == "kill":
            self.kill(process)
            self.block()
        elif kind == "pause":
            self.pause(process, draw.choice((1.0, 30.0, 75.0, 200.0, 1000.0)))
            self.block(self.now_s)
        elif kind == "delay":
            self.block(self.now_s + draw.choice((0.001, 0.1, 1.0, 20.0, 70.0)))
            process.woken_s = self.now_s
        elif kind in ("power", "wipe"):
            self._cut_power(machine, wipes=kind == "wipe")
            if process.is_dead:
                self.block()
        elif kind == "rot":
            self._rot(machine)
        elif kind == "sigterm":
            driver = next((p for p in self._drivers() if p.attempt == process.attempt), process)
            driver.has_sigterm = driver.is_driver
        elif kind == "clock":
            self.has_clock_jumped = True
            jump_s = draw.choice((3.0, -3.0, 59.0, -59.0, 3600.0, -3600.0))
            if draw.random() < 0.5:
                machine.offset_s += jump_s
            else:
                self.bucket.offset_s += jump_s
        elif kind == "second":
            if self._num_attempts < MAX_ATTEMPTS:
                self._start(draw.choice(self._places()))
        elif kind == "ask":
            self._ask(machine)

    def _cut_power(self, machine: Machine, *, wipes: bool) -> None:
        """Take a machine down and bring it back; if it is the file server with the run, take all down."""
        takes_server = "shared" in (self.plan.store_url or "") + self.plan.local_root and self.random.random() < 0.5
        if self.plan.local_root.startswith("/shared"):
            takes_server = True
        for other in self.machines if takes_server else [machine]:
            for process in list(other.processes.values()):
                self.kill(process)
            other.boot += 1
            other.mounts["disk"].cut_power(self.random)
        if takes_server:
            self.shared.cut_power(self.random)
        if wipes and self.plan.store_url:
            self.oracle.wiped(machine.mounts["disk"])
            machine.mounts["disk"] = Disk(machine.name, self._clock_of(machine))

    def _rot(self, machine: Machine) -> None:
        """Spoil a byte of a sealed step, in the bucket or on a disk, without notice."""
        if self.plan.store_url and "://" in self.plan.store_url and self.random.random() < 0.3:
            place, files = None, self.bucket.sealed_keys()
        else:
            place = self.shared if self.plan.local_root.startswith("/shared") else machine.mounts["disk"]
            if self.plan.store_url == "/shared/store" and self.random.random() < 0.3:
                place = self.shared
            files = sealed_files(place.root, ())
        if files:
            key, node = self.random.choice(files)
            self.oracle.rotted(int(STEP.search(key)[1]), place, is_store=key.startswith(STORED))
            if place is None:
                self.bucket.objects[key] = (_flipped(node, self.random), self.bucket.objects[key][1])
            else:
                node.data = node.synced = _flipped(node.data, self.random)

    def _ask(self, machine: Machine) -> None:
        """A pod that has to go asks for a save."""
        from pathlib import Path

        from opd.errors import StoreError
        from opd.pods import stop

        root = Path(self.plan.local_root) / "r"
        pod = self._process(machine, "pod")
        seconds = self.random.choice((2.0, 20.0))

        def ask() -> None:
            with contextlib.suppress(StoreError):  # the hook of a pod whose disk is full
                stop.ask(root, hold_s=seconds)

        self.spawn(pod, "pod", ask)

    def _calm_down(self) -> None:
        """From now on nothing happens."""
        self.is_calm, self._calm_from_s = True, self.now_s
        for machine in self.machines:
            for process in machine.processes.values():
                self.unpause(process)

    def disks_of(self, ranks: list[Process]) -> list[Disk]:
        name = self.plan.local_root.split("/")[1]
        return [process.machine.mounts[name] for process in (self.current.process, *ranks)]

    def _process(self, machine: Machine, role: str) -> Process:
        self._next_pid += 1
        process = Process(machine, self._next_pid, role)
        machine.processes[process.pid] = process
        return process

    def _drivers(self) -> list[Process]:
        return [process for machine in self.machines for process in machine.processes.values() if process.is_driver]

    # ---- what is true ----------------------------------------------------------------------------------------------

    def _arbiter(self) -> tuple[Disk, tuple[str, ...]] | None:
        """The disk that decides who owns the run, and the run's folder on it; None where the bucket does."""
        url = self.plan.store_url
        if url is not None and "://" in url:
            return None
        parts = [*(url or self.plan.local_root).split("/")[1:], "r"]
        return self.machines[0].mounts[parts[0]], tuple(parts[1:])

    def is_here(self, key: str) -> bool:
        """Return True if the run's folder, as the current process sees it, has a file."""
        mount, *folders = self.plan.local_root.split("/")[1:]
        try:
            self.current.process.machine.mounts[mount].find((*folders, "r", *key.split("/")), key)
        except OSError:
            return False
        return True

    def stored(self, key: str) -> bytes | None:
        place = self._arbiter()
        try:
            if place is None:
                return self.bucket.objects[f"bucket/runs/r/{key}"][0]
            return place[0].find((*place[1], *key.split("/")), key).data
        except (KeyError, OSError):
            return None

    def sign_of_life_s(self, attempt: int) -> float | None:
        """When the attempt last renewed its lease, by the clock of the store; None where it has none, or has ended."""
        prefix, place = f"attempts/{attempt:04d}", self._arbiter()
        if self.stored(f"{prefix}/ended.json") is not None or self.stored(f"{prefix}/heartbeat.json") is None:
            return None
        if self.is_here(f"{prefix}/ended.json"):  # the disk of the run's folder counts, too
            return None
        if place is None:
            return self.bucket.objects[f"bucket/runs/r/{prefix}/heartbeat.json"][1]
        return place[0].find((*place[1], *prefix.split("/"), "heartbeat.json"), "").modified_s

    def store_now_s(self) -> float:
        place = self._arbiter()
        return self._store_clock() if place is None else place[0].clock()

    def lives(self, attempt: int, *, for_s: float) -> bool:
        """Return True if the driver of an attempt runs and has not been asleep for so long."""
        awake_s = self.now_s - for_s
        return any(process.attempt == attempt and process.woken_s < awake_s for process in self._drivers())

    def claimed_attempts(self) -> list[int]:
        place = self._arbiter()
        if place is None:
            return [int(key.split("/")[-2]) for key in self.bucket.objects if key.endswith("/owner.json")]
        try:
            folder = place[0].find((*place[1], "attempts"), "")
        except OSError:
            return []
        return [int(name) for name, node in folder.names.items() if name.isdigit() and "owner.json" in node.names]

    def _clock_of(self, machine: Machine) -> Any:
        return lambda: EPOCH_S + self.now_s + machine.offset_s

    def _store_clock(self) -> float:
        return EPOCH_S + self.now_s + self.bucket.offset_s


def _flipped(data: bytes, draw: Any) -> bytes:
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
