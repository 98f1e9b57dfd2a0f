"""The calls by which the control code changes a disk: as strace sees them, and as the simulated disk does.

`python -m tests.simulator.calls` records the real ones anew in calls.txt; a test holds that the simulated ones are the same.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

RECORD = Path(__file__).with_name("calls.txt")
_UNIQUE = re.compile(r"[0-9a-f]{32}|part-[0-9a-f]{8}")
_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
# A descriptor with its path, as `-y` shows it; the same, or a string.
_DESCRIPTOR = re.compile(r"\b\d+<([^>]*)>")
_OPERAND = re.compile(r'(?:AT_FDCWD|\d+)<([^>]*)>|"([^"]*)"')
_NAMES = {
    "mkdir": "mkdir", "mkdirat": "mkdir", "rename": "rename", "renameat": "rename", "renameat2": "rename",
    "link": "link", "linkat": "link", "unlink": "unlink", "unlinkat": "unlink", "rmdir": "rmdir",
    "openat": "create", "fsync": "sync", "fdatasync": "sync", "write": "write", "sendfile": "write", "copy_file_range": "write",
}  # fmt: skip
# Calls on open files, and which of their descriptors is changed.
_ON_DESCRIPTORS = {"write": 0, "sendfile": 0, "copy_file_range": 1, "fsync": 0, "fdatasync": 0}


def exercise(root: Path) -> None:
    """Everything that the control code does to a disk, once."""
    from opd.runs.manifest import hash_files
    from opd.runs.metrics import MetricsWriter
    from opd.runs.staging import move_in, sweep_older
    from opd.store.local import LocalStore

    store = LocalStore(root / "run")
    store.create("attempts/0001/owner.json", b"owner")
    store.put("attempts/0001/heartbeat.json", b"one")
    store.put("attempts/0001/heartbeat.json", b"two")
    metrics = MetricsWriter(path=root / "run/attempts/0001/metrics.jsonl")
    metrics.log(1, {"loss": 1.0})
    metrics.close()
    staged = root / "run/checkpoints/.saving-0002/global_step_1"
    (root / "run/checkpoints/.saving-0001/global_step_1").mkdir(parents=True)
    (staged / "actor").mkdir(parents=True)
    sweep_older(staged.parent)
    (staged / "data.pt").write_bytes(b"data")
    step = root / "run/checkpoints/global_step_1"
    move_in(staged, step, rank=-1)
    hash_files(step, ["data.pt"], rank=-1)
    copies = LocalStore(root / "copies")
    copies.put_file("data.pt", step / "data.pt")
    copies.get_file("data.pt", root / "back/data.pt")
    store.delete("attempts/0001/heartbeat.json")
    store.delete_tree("checkpoints/global_step_1")


def line(name: str, *paths: str) -> str:
    """A call with its paths below the root, without what is unique in them."""
    return " ".join([name, *(_UNIQUE.sub("*", path) for path in paths)])


def of_strace(printed: str, root: str) -> list[str]:
    """The changing calls below `root` that strace printed, in order, but for those that failed."""
    found = []
    begun: dict[str, str] = {}
    for row in printed.splitlines():
        thread = row.partition(" ")[0]
        if row.endswith("<unfinished ...>"):  # another thread's call comes between
            begun[thread] = row.removesuffix("<unfinished ...>").rstrip()
            continue
        if "resumed>" in row:
            row = begun.pop(thread) + row.partition("resumed>")[2]
        match = _CALL.match(row)
        if match is None or match[3].startswith("-"):
            continue
        name, arguments = match[1], match[2]
        if (name == "openat" and "O_CREAT" not in arguments) or (name == "sendfile" and match[3] == "0"):
            continue
        if name in _ON_DESCRIPTORS:
            paths = _DESCRIPTOR.findall(arguments)[_ON_DESCRIPTORS[name] :][:1]
        else:
            paths = []
            for path, text in _OPERAND.findall(
                arguments
            ):  # a relative name is below the folder of the descriptor before it
                if path or text.startswith("/"):
                    paths.append(path or text)
                else:
                    paths[-1] += f"/{text}"
        kind = "rmdir" if "AT_REMOVEDIR" in arguments else _NAMES[name]
        below = [path.removeprefix(root + "/") for path in paths if path.startswith(root + "/")]
        if below:
            found.append(line(kind, *below))
    return found


def of_simulation() -> list[str]:
    """The same of the simulated disk."""
    from tests.simulator import seams
    from tests.simulator.scheduler import Process
    from tests.simulator.world import World

    world = World(0, 0)
    process = Process(world.machines[0], 100, "driver")
    seams.enter(world)
    world.changes = []
    task = world.spawn(process, "main", lambda: exercise(Path("/disk/x")))
    world.run()
    seams.enter(None)
    if task.error is not None:
        raise task.error
    below = [(name, [path.removeprefix("/disk/x/") for path in paths]) for name, paths in world.changes]
    return [line(name, *paths) for name, paths in below if not paths[0].startswith("/")]


def record() -> None:
    """Runs `exercise` under strace and keeps what it saw."""
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(folder).resolve() / "x")
        Path(root).mkdir()
        traced = f"{folder}/trace"
        code = f"from pathlib import Path; from tests.simulator.calls import exercise; exercise(Path({root!r}))"
        names = ",".join(_NAMES)
        subprocess.run(
            ["strace", "-f", "-y", "-s", "4096", "-o", traced, "-e", f"trace={names}", sys.executable, "-c", code],
            check=True,
        )
        RECORD.write_text("\n".join(of_strace(Path(traced).read_text(), root)) + "\n")


if __name__ == "__main__":
    record()
