"""Scenarios in which the object store answers 503 from the end of the training on: a proxy in front of a real S3 server."""

import time

from tests.chaos.attempt import require
from tests.chaos.context import Context, last_lines
from tests.chaos.kills import EQUAL
from tests.chaos.scenario import scenario

from opd.runs.manifest import complete_steps


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
