"""`python -m tests.e2e run|verify`: the scenarios on the one-node cluster, and their judgement from the raw evidence."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from tests.commit import this_commit
from tests.e2e import machine, table
from tests.e2e.cluster import buildah, images, lifecycle
from tests.e2e.cluster.inside import ADMIN_KUBECONFIG, PIDS, USER_KUBECONFIG
from tests.e2e.cluster.kube import Kube, KubeError
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises import recovery
from tests.e2e.promises.common import PLAYED, judge
from tests.e2e.scenarios.evidence import Evidence, hashes
from tests.e2e.scenarios.registry import MACHINE, PROMISES, SCENARIOS
from tests.e2e.scenarios.run import Run
from tests.e2e.scenarios.scene import Scene

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "e2e"
_SUMMARY, _HASHES, _IMAGE = "summary.json", "hashes.json", "image.yaml"


def main() -> int:
    """Run the command line; returns 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="image, cluster, scenarios, summary (root)")
    run.add_argument(
        "names", nargs="*", type=_scenario, metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default"
    )
    inside = commands.add_parser("inside", help="the scenarios, in the cluster's namespaces; `run` calls it")
    inside.add_argument("names", nargs="+", type=_scenario)
    commands.add_parser("verify", help="judge the evidence again and compare with the summary")
    args = parser.parse_args()
    if args.command == "run":
        return _run(args.names or list(SCENARIOS))
    return play(args.names, BUILD) if args.command == "inside" else verify(BUILD)


def _scenario(name: str) -> str:
    if name not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"{name!r} is not a scenario: {', '.join(SCENARIOS)}")
    return name


def _run(names: list[str]) -> int:
    """Build what is missing, bring the cluster up, run inside it, end it; the table is written after a run of all."""
    try:
        with lifecycle.held("make e2e"):
            return _run_alone(names)
    except (lifecycle.ClusterError, buildah.ImageError) as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1


def _run_alone(names: list[str]) -> int:
    begin, commit = time.monotonic(), this_commit(table.TABLE)
    say = lambda line: print(f"{time.monotonic() - begin:6.0f} s  {line}", flush=True)  # noqa: E731
    lifecycle.down(say)  # what a run before this one may have left half way
    evidence = Evidence(BUILD / MACHINE)
    evidence.tree("before.json", machine.look())
    image = images.build_cpu_image(say)
    (BUILD / _IMAGE).write_text(yaml.safe_dump({"cluster": {"image": {"ref": image.ref, "local": True}}}))
    lifecycle.up(say, archives=(image.archive,))
    try:
        code = lifecycle.shell([sys.executable, "-m", "tests.e2e", "inside", *names])
        evidence.tree("restarts.json", lifecycle.restarts())
    finally:
        lifecycle.down(say)
    evidence.tree("after.json", machine.look())
    if not Record(BUILD).enter(MACHINE, evidence, say):
        code = 1
    seconds = time.monotonic() - begin
    say(f"{len(names)} scenarios: {'every promise kept' if code == 0 else 'see above for what broke'}")
    if names == list(SCENARIOS):
        rows = json.loads((BUILD / _SUMMARY).read_text())
        table.write(rows, recoveries=recovery.table(BUILD), seconds=seconds, commit=commit)
    return code


def play(names: list[str], build: Path) -> int:
    """Play scenarios one after the other and judge each; one that raises leaves its traceback beside its evidence."""
    record, is_whole = Record(build), True
    for number, name in enumerate(names, start=1):
        evidence = Evidence(build / name)
        scene = _scene(name, evidence, build / _IMAGE)
        scene.say(f"scenario {number} of {len(names)}")
        try:
            scene.begin_empty()
            SCENARIOS[name].play(scene)
            evidence.text(PLAYED, f"{evidence.seconds:.0f}")
        except (TimeoutError, KubeError, OSError, ValueError, LookupError, subprocess.SubprocessError):
            evidence.text("traceback.txt", traceback.format_exc())
        is_whole = record.enter(name, evidence, scene.say) and is_whole
        if not (evidence.folder / PLAYED).is_file():
            _clear(scene)
    return 0 if is_whole else 1


class Record:
    """summary.json and hashes.json in a folder; rows of scenarios that an earlier call played stay."""

    def __init__(self, build: Path) -> None:
        self._summary, self._hashes = build / _SUMMARY, build / _HASHES

    def enter(self, name: str, evidence: Evidence, say: Callable[[str], None]) -> bool:
        """Judge a scenario, say and write what was found; whether every promise was kept."""
        found = judge(PROMISES[name], evidence.folder)
        for one in found:
            say(f"{'kept  ' if one.ok else 'BROKEN'}  {one.promise} ({one.observed})")
        rows = [row for row in _read(self._summary, []) if row["scenario"] in PROMISES and row["scenario"] != name]
        rows += [one.row(name, evidence.seconds) for one in found]
        order = list(PROMISES)
        rows.sort(key=lambda row: order.index(row["scenario"]))
        kept = {key: value for key, value in _read(self._hashes, {}).items() if key in PROMISES}
        self._summary.write_text(json.dumps(rows, indent=1))
        self._hashes.write_text(json.dumps({**kept, name: hashes(evidence.folder)}, indent=1))
        return all(one.ok for one in found)


def verify(folder: Path) -> int:
    """Whether the evidence is what was judged, and whether judging it again gives the summary; prints each difference."""
    rows, recorded = _read(folder / _SUMMARY, None), _read(folder / _HASHES, None)
    if rows is None or recorded is None:
        print(f"nothing to verify in {folder}: make e2e")
        return 1
    faults = []
    for name in recorded:
        if hashes(folder / name) != recorded[name]:
            faults.append(f"{name}: the evidence is not what was judged")
        found = judge(PROMISES[name], folder / name)
        again = {promise.promise: (promise.ok, promise.observed) for promise in found}
        before = {row["promise"]: (row["ok"], row["observed"]) for row in rows if row["scenario"] == name}
        faults += [
            f"{name}: {key}: summary {before.get(key)}, evidence {again.get(key)}"
            for key in {**again, **before}
            if before.get(key) != again.get(key)
        ]
        faults += [f"{name}: {key}: broken" for key, (ok, _) in again.items() if not ok]
    faults += [f"{name}: no evidence" for name in {row["scenario"] for row in rows} - set(recorded)]
    print("\n".join(faults) or f"{len(rows)} promises of {len(recorded)} of {len(PROMISES)} scenarios: kept")
    return 1 if faults else 0


def _scene(name: str, evidence: Evidence, image: Path) -> Scene:
    place = lifecycle.folder()
    return Scene(
        name=name,
        user=Kube(kubeconfig=place / USER_KUBECONFIG),
        admin=Kube(kubeconfig=place / ADMIN_KUBECONFIG),
        evidence=evidence,
        image=image,
        pids=place / PIDS,
    )


def _clear(scene: Scene) -> None:
    """Make room for the next scenario after one that broke off; what cannot be cleared is the next one's to stumble on."""
    try:
        for job in scene.user.items("rayjobs", namespace=NAMESPACE):
            name = job["metadata"]["name"]
            Run(scene, "opd", name).helm("uninstall", name, timeout_s=600)
            scene.user.run("delete", "rayjob", name, "-n", NAMESPACE, "--ignore-not-found", "--wait=false")
        empty = lambda: not scene.user.items("pods", namespace=NAMESPACE)  # noqa: E731
        scene.user.until("the namespace has no pods", empty, timeout_s=300)
    except (TimeoutError, KubeError, subprocess.SubprocessError) as error:
        scene.say(f"not cleared: {error}")


def _read(path: Path, otherwise: Any) -> Any:
    return json.loads(path.read_text()) if path.is_file() else otherwise


if __name__ == "__main__":
    sys.exit(main())
