"""`python -m tests.e2e run|verify`: the scenarios on the one-node cluster, and their judgement from the raw evidence."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.cluster import images, lifecycle
from tests.e2e.cluster.kube import Kube, KubeError
from tests.e2e.cluster.services import S3_SECRET
from tests.e2e.cluster.tenancy import NAMESPACE
from tests.e2e.scenarios import quickstart
from tests.e2e.scenarios.evidence import Evidence, hashes
from tests.e2e.scenarios.promises import PROMISES, judge

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "e2e"
SCENARIOS = {"quickstart": quickstart.run}
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
    commands.add_parser("verify", help="judge the evidence again and compare with the summary")
    args = parser.parse_args()
    if args.command == "run":
        return _run(args.names or list(SCENARIOS))
    return _inside(args.names) if args.command == "inside" else verify(BUILD)


def _scenario(name: str) -> str:
    if name not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"{name!r} is not a scenario: {', '.join(SCENARIOS)}")
    return name


def _run(names: list[str]) -> int:
    """Build what is missing, bring the cluster up, run inside it, end it."""
    say = lambda line: print(line, flush=True)  # noqa: E731
    try:
        image = images.build_cpu_image()
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / _IMAGE).write_text(yaml.safe_dump({"cluster": {"image": {"ref": image.ref, "local": True}}}))
        lifecycle.down(say)  # what a run before this one may have left half way
        lifecycle.up(say, archives=(image.archive,))
        try:
            return lifecycle.shell([sys.executable, "-m", "tests.e2e", "inside", *names])
        finally:
            lifecycle.down(say)
    except (lifecycle.ClusterError, images.ImageError) as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 1


def _inside(names: list[str]) -> int:
    """Run scenarios one after the other; one that raises leaves its traceback beside its evidence."""
    place = lifecycle.folder()
    user = Kube(kubeconfig=place / lifecycle.USER_KUBECONFIG)
    store = _store_of(user)
    rows: list[dict[str, Any]] = []
    for name in names:
        evidence = Evidence(BUILD / name)
        try:
            SCENARIOS[name](user, evidence, BUILD / _IMAGE, store)
        except (TimeoutError, KubeError, OSError):
            evidence.text("traceback.txt", traceback.format_exc())
        found = judge(name, evidence.folder)
        rows += [promise.row(name, evidence.seconds) for promise in found]
        for promise in found:
            print(f"{'kept  ' if promise.ok else 'BROKEN'}  {name}: {promise.promise} ({promise.observed})", flush=True)
    evidence_hashes = {name: hashes(BUILD / name) for name in names}
    (BUILD / _SUMMARY).write_text(json.dumps(rows, indent=1))
    (BUILD / "hashes.json").write_text(json.dumps(evidence_hashes, indent=1))
    return 0 if all(row["ok"] for row in rows) else 1


def verify(folder: Path) -> int:
    """Whether the evidence is what was judged, and whether judging it again gives the summary; prints each difference."""
    rows = json.loads((folder / _SUMMARY).read_text())
    recorded = json.loads((folder / "hashes.json").read_text())
    faults = []
    for name in recorded:
        if hashes(folder / name) != recorded[name]:
            faults.append(f"{name}: the evidence is not what was judged")
        again = {promise.promise: (promise.ok, promise.observed) for promise in judge(name, folder / name)}
        before = {row["promise"]: (row["ok"], row["observed"]) for row in rows if row["scenario"] == name}
        faults += [
            f"{name}: {key}: summary {before.get(key)}, evidence {again[key]}"
            for key in again
            if before.get(key) != again[key]
        ]
        faults += [f"{name}: {key}: broken" for key, (ok, _) in again.items() if not ok]
    faults += [f"{name}: no evidence" for name in {row["scenario"] for row in rows} - set(recorded)]
    print("\n".join(faults) or f"{len(rows)} promises of {len(recorded)} of {len(PROMISES)} scenarios: kept")
    return 1 if faults else 0


def _store_of(user: Kube) -> dict[str, str]:
    """The variables of the Secret that the runs use too."""
    data = user.get("secret", S3_SECRET, namespace=NAMESPACE)["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


if __name__ == "__main__":
    sys.exit(main())
