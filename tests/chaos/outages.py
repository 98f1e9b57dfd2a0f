"""Scenarios in which the object store answers 503, for a while and for good: a proxy before a real S3 server."""

from __future__ import annotations

import time

from tests.chaos.attempt import require
from tests.chaos.context import Context, last_lines
from tests.chaos.kills import EQUAL
from tests.chaos.scenario import scenario

from opd.runs.resume import complete_steps

SHORT_OUTAGE_S = 20.0


@scenario(
    done="503 for 20 s while step 2 is uploaded, then for as long as it takes to give up the upload of step 4",
    promised=f"the first is waited out, step 4 stays on the disk and is made up for; one attempt, exit 0; {EQUAL}",
)
def store_away_for_a_while(context: Context) -> str:
    with context.s3_store() as (proxy, url, environment):
        case = context.case("run", store_url=url, environment=environment, sets=("trainer.save_freq=2",))
        attempt = case.start(freeze_at="upload:1,upload:2")
        attempt.must_freeze_at("upload", 1)
        proxy.is_away = True
        attempt.thaw()
        time.sleep(SHORT_OUTAGE_S)
        num_short = proxy.num_refused
        proxy.is_away = False
        require(num_short > 0, "nobody asked the store while it was away")
        attempt.must_freeze_at("upload", 2)
        require(2 in complete_steps([case.places.store]), "step 2 is not in the store although the outage was short")
        proxy.is_away = True
        attempt.thaw()
        given_up = "global_step_4 is complete on the local disk only"
        require(attempt.until(lambda: given_up in attempt.output), f"step 4 was not given up: {last_lines(attempt)}")
        proxy.is_away = False
        require(attempt.wait() == 0, f"exit {attempt.process.returncode}: {last_lines(attempt)}")
        attempt.must_leave_nothing()
        stored = complete_steps([case.places.store])
        require({4, 6, 8} <= set(stored), f"the store holds the steps {stored}")
        context.must_equal_reference(case)
        return f"{num_short} requests refused and waited out, then {proxy.num_refused - num_short}; step 4 made up for; equal"


@scenario(
    done="503 from the upload of the last step on, for good; a second start; then the store is back",
    promised=f"exit 1 and a message that says where everything is; after the store's return {EQUAL}",
)
def store_away_for_good(context: Context) -> str:
    with context.s3_store() as (proxy, url, environment):
        case = context.case("run", store_url=url, environment=environment, sets=("trainer.save_freq=4",))
        attempt = case.start(freeze_at="upload:2")
        attempt.must_freeze_at("upload", 2)
        proxy.is_away = True
        attempt.thaw()
        started_s = time.monotonic()
        require(attempt.wait() == 1, f"exit {attempt.process.returncode}: {last_lines(attempt)}")
        patience_s = time.monotonic() - started_s
        attempt.must_leave_nothing()
        said = "the run is done but its result could not be stored"
        require(said in attempt.output, f"no clear end: {last_lines(attempt)}")
        require(str(case.places.local.root) in attempt.output, f"it does not say where the data is: {attempt.log}")
        require(complete_steps([case.places.local]) == [4, 8], "the disk does not hold steps 4 and 8")
        refused = case.start()
        require(refused.wait() == 1, f"a start without a store: exit {refused.process.returncode}")
        lines = [line for line in refused.output.splitlines() if line.startswith("opd.launch: ") and url in line]
        require(len(lines) == 1, f"a start without a store has no clear line: {last_lines(refused)}")
        proxy.is_away = False
        last = case.finish()
        case.must_have_resumed(last, 8)
        require(not [line for line in last.phases if line.startswith("update")], "it trained again")
        context.must_equal_reference(case)
        return f"gave up after {patience_s:.0f} s, exit 1, data on the disk; later uploaded without an update; equal"
