"""Command of `make e2e`: the scenarios on the one-node cluster, judged from their evidence."""

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
from tests.e2e import table
from tests.e2e.cluster import buildah, images, lifecycle
from tests.e2e.cluster.inside import ADMIN_KUBECONFIG, PIDS, USER_KUBECONFIG
from tests.e2e.cluster.kube import Kube, KubeError
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.promises.common import PLAYED, judge
from tests.e2e.scenarios.evidence import Evidence
from tests.e2e.scenarios.registry import PROMISES, SCENARIOS
from tests.e2e.scenarios.run import Run
from tests.e2e.scenarios.scene import Scene

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "e2e"
_SUMMARY, _IMAGE = "summary.json", "image.yaml"


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
    args = parser.parse_args()
    if args.command == "run":
        return _run(args.names or list(SCENARIOS))
    return play(args.names, BUILD)


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
    image = images.build_cpu_image(say)
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / _IMAGE).write_text(yaml.safe_dump({"cluster": {"image": {"ref": image.ref, "local": True}}}))
    lifecycle.up(say, archives=(image.archive,))
    try:
        code = lifecycle.shell([sys.executable, "-m", "tests.e2e", "inside", *names])
    finally:
        lifecycle.down(say)
    seconds = time.monotonic() - begin
    say(f"{len(names)} scenarios: {'every promise kept' if code == 0 else 'see above for what broke'}")
    if names == list(SCENARIOS):
        rows = json.loads((BUILD / _SUMMARY).read_text())
        table.write(rows, seconds=seconds, commit=commit)
    return code


def play(names: list[str], build: Path) -> int:
    """Play scenarios one after the other and judge each; one that raises leaves its traceback beside its evidence."""
    is_whole = True
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
        is_whole = _enter(name, evidence, scene.say) and is_whole
        if not (evidence.folder / PLAYED).is_file():
            _clear(scene)
    return 0 if is_whole else 1


def _enter(name: str, evidence: Evidence, say: Callable[[str], None]) -> bool:
    """Judge a scenario, say and record the result next to those of earlier calls; return False for a broken promise."""
    found, path = judge(PROMISES[name], evidence.folder), evidence.folder.parent / _SUMMARY
    for one in found:
        say(f"{'kept  ' if one.ok else 'BROKEN'}  {one.promise} ({one.observed})")
    rows = [row for row in _read(path) if row["scenario"] in PROMISES and row["scenario"] != name]
    rows += [one.row(name, evidence.seconds) for one in found]
    rows.sort(key=lambda row: list(PROMISES).index(row["scenario"]))
    path.write_text(json.dumps(rows, indent=1))
    return all(one.ok for one in found)


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


def _read(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text()) if path.is_file() else []


if __name__ == "__main__":
    sys.exit(main())
