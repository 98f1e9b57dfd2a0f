"""Command of `make e2e`: the scenarios on the one-node cluster, and the table of their promises."""

import argparse
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path

import yaml
from tests.commit import this_commit
from tests.e2e.cluster import buildah, images, lifecycle
from tests.e2e.cluster.inside import ADMIN_KUBECONFIG, PIDS, USER_KUBECONFIG
from tests.e2e.cluster.kube import Kube, KubeError
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios import SCENARIOS
from tests.e2e.scene import ROOT, Run, Scene
from tests.results import write_results

BUILD = ROOT / "build" / "e2e"
SUMMARY, IMAGE, TABLE = BUILD / "summary.json", BUILD / "image.yaml", Path(__file__).with_name("RESULTS.md")
_HEAD = """# On the one-node cluster: the last run of `make e2e`

Written by the run. Everything that a scenario saw is in `build/e2e/SCENARIO`.

{} of {} promises kept in {:.0f} minutes."""


def main() -> int:
    """Run the command line; return 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e", description=__doc__)
    parser.add_argument(
        "command", choices=["run", "inside"], help="run: with image and cluster (root); inside: in its namespaces"
    )
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default")
    args = parser.parse_args()
    names = args.names or list(SCENARIOS)
    if unknown := set(names) - set(SCENARIOS):
        parser.error(f"{', '.join(unknown)}: no scenario; they are {', '.join(SCENARIOS)}")
    if args.command == "inside":
        return play(names)
    try:
        with lifecycle.held("make e2e"):
            return _run(names)
    except (lifecycle.ClusterError, buildah.ImageError) as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1


def _run(names: list[str]) -> int:
    """Build what is missing, bring the cluster up, play inside it, end it; a run of all scenarios writes the table."""
    begin, commit = time.monotonic(), this_commit(TABLE)
    say = lambda line: print(f"{time.monotonic() - begin:6.0f} s  {line}", flush=True)  # noqa: E731
    lifecycle.down(say)  # of an earlier run that was killed
    image = images.build_cpu_image(say)
    BUILD.mkdir(parents=True, exist_ok=True)
    IMAGE.write_text(yaml.safe_dump({"cluster": {"image": {"ref": image.ref, "local": True}}}))
    lifecycle.up(say, archives=(image.archive,))
    try:
        code = lifecycle.shell([sys.executable, "-m", "tests.e2e", "inside", *names])
    finally:
        lifecycle.down(say)
    seconds = time.monotonic() - begin
    say(f"{len(names)} scenarios: {'every promise kept' if code == 0 else 'see above for what broke'}")
    if names == list(SCENARIOS):
        rows = json.loads(SUMMARY.read_text())
        head = _HEAD.format(sum(row["ok"] for row in rows), len(rows), seconds / 60)
        cells = ((row["scenario"], row["promise"], row["observed"], "yes" if row["ok"] else "**no**") for row in rows)
        write_results(TABLE, head, ("scenario", "promise", "observed", "kept"), cells, commit)
    return code


def play(names: list[str]) -> int:
    """Play scenarios one after the other; a scenario that raises breaks the promise of its end."""
    place, rows = lifecycle.folder(), []
    for number, name in enumerate(names, start=1):
        scene = Scene(
            name=name,
            user=Kube(kubeconfig=place / USER_KUBECONFIG),
            admin=Kube(kubeconfig=place / ADMIN_KUBECONFIG),
            folder=BUILD / name,
            image=IMAGE,
            pids=place / PIDS,
        )
        begin = time.monotonic()
        scene.say(f"scenario {number} of {len(names)}")
        try:
            scene.begin_empty()
            SCENARIOS[name](scene)
            scene.promise("finished", True, f"in {time.monotonic() - begin:.0f} s")
        except Exception as error:  # noqa: BLE001  # any error breaks the promise of the end, and the next scenario plays
            scene.keep("traceback.txt", traceback.format_exc())
            scene.promise("finished", False, f"{type(error).__name__}: {error}")
            _clear(scene)
        rows += scene.rows
        SUMMARY.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["ok"] for row in rows) else 1


def _clear(scene: Scene) -> None:
    """Make room for the next scenario after a broken one."""
    try:
        for job in scene.user.items("rayjobs", namespace=NAMESPACE):
            name = job["metadata"]["name"]
            Run(scene, "opd", name).helm("uninstall", name, timeout_s=600)
            scene.user.run("delete", "rayjob", name, "-n", NAMESPACE, "--ignore-not-found", "--wait=false")
        empty = lambda: not scene.user.items("pods", namespace=NAMESPACE)  # noqa: E731
        scene.user.until("the namespace has no pods", empty)
    except (TimeoutError, KubeError, subprocess.SubprocessError) as error:
        scene.say(f"not cleared: {error}")


if __name__ == "__main__":
    sys.exit(main())
