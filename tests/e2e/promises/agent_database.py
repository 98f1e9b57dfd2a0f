"""What opd-agent over an imported database promises, from a claim and from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.promises.common import Look, changes, ended, text, training_rows, tree

from opd.agent.trajectories import Trajectory, from_lines

RUNS = ("from-claim", "from-store")
EXPECTED, STAGED, TRAJECTORIES = "expected.json", "stage.txt", "trajectories.jsonl"
_TOOL = "query_hotel_info"


def _trained(run: str) -> Look:
    def look(folder: Path) -> tuple[bool, str]:
        steps = [step for _, step in training_rows(folder, run)]
        is_saved = any(name.endswith("global_step_1/COMPLETE") for name in text(folder, f"{run}.s3.txt").split())
        return steps == [1] and is_saved, f"steps {steps}, saved: {is_saved}"

    return look


def _conversations(folder: Path, run: str) -> dict[str, Trajectory]:
    """The kept conversations by the number of their case, which the query ends with."""
    found = from_lines((folder / f"{run}.{TRAJECTORIES}").read_bytes())
    cases = tree(folder, EXPECTED)["cases"]
    return {case: item for item in found for case in cases if f", {case}" in item.prompt}


def asked_its_case(run: str) -> Look:
    """Each conversation's tools told the price of its own case."""

    def look(folder: Path) -> tuple[bool, str]:
        cases, items = tree(folder, EXPECTED)["cases"], _conversations(folder, run)
        calls = {case: [call for turn in item.calls for call in turn] for case, item in items.items()}
        right = [
            case
            for case, (call,) in calls.items()
            if call["name"] == _TOOL and not call["error"] and f"30{case}.0" in call["reply"]
        ]
        return sorted(right) == cases, f"cases {', '.join(sorted(right))} of {', '.join(cases)}"

    return look


def scored_by_its_case(run: str) -> Look:
    """All tell the one plan, which is right for one case: there every rule holds, elsewhere all but that on the price."""

    def look(folder: Path) -> tuple[bool, str]:
        expected, items = tree(folder, EXPECTED), _conversations(folder, run)
        scores = {case: item.score for case, item in sorted(items.items())}
        # One rule of one of eight dimensions, and no constraint, which asks for the hotel by its name.
        wanted = {case: 1.0 if case == expected["right"] else 1 - 1 / 16 for case in expected["cases"]}
        return scores == wanted, str(scores)

    return look


def _last_pods(folder: Path, run: str) -> list[Any]:
    """Head and worker as they were seen last."""
    newest = {pod["metadata"]["name"]: pod for pod in changes(folder, run, "pods")}
    wanted = ("head", "worker")
    return [pod for pod in newest.values() if pod["metadata"]["labels"].get("app.kubernetes.io/component") in wanted]


def _on_claim(folder: Path) -> tuple[bool, str]:
    found = [
        volume["persistentVolumeClaim"]
        for pod in _last_pods(folder, "from-claim")
        for volume in pod["spec"]["volumes"]
        if volume["name"] == "tool-database"
    ]
    right = len(found) >= 2 and all(claim == {"claimName": "tool-database", "readOnly": True} for claim in found)
    return right, str(found)


def _fetched(folder: Path) -> tuple[bool, str]:
    codes = [
        status.get("state", {}).get("terminated", {}).get("exitCode")
        for pod in _last_pods(folder, "from-store")
        for status in pod["status"].get("initContainerStatuses", [])
        if status["name"] == "fetch-tool-database"
    ]
    return len(codes) >= 2 and set(codes) == {0}, f"exit codes {codes}"


def _staged(folder: Path) -> tuple[bool, str]:
    lines = text(folder, STAGED).strip().splitlines()
    done = [line for line in lines if " holds " in line]
    return len(done) == 1, "; ".join(done) or lines[-1]


PROMISES: dict[str, Look] = {
    "the Job of manifests/stage.yaml fills the claim": _staged,
    **{f"{run}: the RayJob SUCCEEDED": ended(run) for run in RUNS},
    "from-claim: head and worker read the claim": _on_claim,
    "from-store: head and worker fetched and verified the archive": _fetched,
    **{f"{run}: the step is trained and saved": _trained(run) for run in RUNS},
    **{f"{run}: the tools tell each row's own case": asked_its_case(run) for run in RUNS},
    **{f"{run}: the benchmark's rules judge each row by its own case": scored_by_its_case(run) for run in RUNS},
}
