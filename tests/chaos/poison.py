"""Scenarios in which the run itself makes what could end it: an update without a finite loss, and a hostile model's text."""

import os
import sys
from pathlib import Path

from tests.chaos import marks
from tests.chaos.attempt import ROOT, RUN_ID, require
from tests.chaos.context import Case, Context
from tests.chaos.scenario import scenario
from tests.processes import ended
from tests.scripted import override

from opd.agent.trajectories import from_lines
from opd.runs.metrics import read_metrics
from opd_envs.travel.toy import MODELS, STUDENT

HOSTILE = Path(__file__).parent / "specs" / "hostile.yaml"
# A turn each; the JSON escapes of half a character are plain text until a call is parsed.
TURNS = (
    r'<tool_call>{"name": "nosuch", "arguments": {"city": "\ud800"}}</tool_call>',
    r'<tool_call>{"name": "get_price", "arguments": {"city": "\ud800", "name": "a\udfffb"}}</tool_call>',
    r'<tool_call>{"name": "\ud800", "arguments": {"\udc00": 1}}</tool_call>',
    '<tool_call>{"name": "get_price", "arguments": ' + '{"a":' * 200 + "1" + "}" * 200 + "}</tool_call>",
    '<tool_call>{"name": "add_costs", "arguments": {"prices": [1e999, NaN, ' + "9" * 400 + "]}}</tool_call>",
    "<tool_call>{'name': [/red]}</tool_call>\u2028\u2029\x85\x1b[31m\x1b]0;title\x07",
    "<answer>\u202e\x1b[2J\u2028</answer>",
)
SKIPPED_STEP = 3


@scenario(
    done=f"one row of step {SKIPPED_STEP} weighs nan; SIGKILL of everything as that step is sealed",
    promised="its update is skipped and counted, over both attempts once; ends equal to the uninterrupted run with that nan",
)
def skipped_update(context: Context) -> str:
    environment = {marks.NAN_AT: str(SKIPPED_STEP)}
    reference = context.case("reference", environment=environment)
    reference.finish()
    skipped = {
        row["step"]: row["opd/skipped"] for row in read_metrics([reference.places.store]) if row.get("opd/skipped")
    }
    require(skipped == {SKIPPED_STEP: 1.0}, f"updates skipped by step: {skipped}")
    result = reference.places.store.get_json("result.json")
    require(result is not None and result.get("updates_skipped") == 1, f"result.json says {result}")
    newest = _killed_and_finished(context.case("run", environment=environment), f"seal:{SKIPPED_STEP}")
    context.must_equal(reference.places, context.cases[-1].places, num_starts=2)
    return f"one update of {result['updates']} skipped, counted once, resumed from {newest}; equal"


@scenario(
    done="a model that writes halves of characters, separators, nesting, huge numbers and terminal commands; SIGKILL as step 2 is sealed",
    promised="no conversation fails the run, all are stored and shown; ends equal to the uninterrupted run of that model",
)
def hostile_output(context: Context) -> str:
    options = {"spec": HOSTILE, "overrides": (override(context.folder, {"": TURNS}, MODELS[STUDENT]),)}
    reference = context.case("reference", **options)
    reference.finish()
    case = context.case("run", **options)
    newest = _killed_and_finished(case, "seal:2")
    context.must_equal(reference.places, case.places, num_starts=2)
    kept = [
        item
        for name in case.places.local.children("trajectories")
        for item in from_lines(case.places.local.get(f"trajectories/{name}"))
    ]
    shortest = min((len(item.segments) for item in kept), default=0)
    require(shortest > len(TURNS), f"{len(kept)} conversations are kept, the shortest of {shortest} pieces")
    for words in (("list",), ("status", RUN_ID), ("report", RUN_ID, "-f", str(context.folder / "report.html"))):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tools")),
            "KUBECONFIG": str(context.folder / "no-kubeconfig"),
        }
        shown = ended(sys.executable, "-m", "opdctl", *words, "--store", case.folder / "store", env=environment)
        require(shown.returncode == 0, f"opdctl {words[0]}: exit {shown.returncode}: {shown.stderr[-300:]}")
        require("\x1b]0" not in shown.stdout, f"opdctl {words[0]} prints the model's terminal commands")
    return f"{len(kept)} conversations stored and read back, list, status and report show the run, resumed from {newest}; equal"


def _killed_and_finished(case: Case, freeze_at: str) -> int | None:
    """All processes die at the mark, and a second attempt ends well; the step that it resumed from."""
    attempt = case.start(freeze_at=freeze_at)
    phase, _, nth = freeze_at.partition(":")
    attempt.must_freeze_at(phase, int(nth))
    attempt.kill_tree()
    return case.finish_from_newest(attempt)
