"""Scenarios that end processes: SIGKILL at random points, SIGTERM, and a kill between the last checkpoint and the result."""

import random
import shutil
import signal
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from tests.chaos.attempt import Attempt, require
from tests.chaos.context import Case, Context
from tests.chaos.scenario import scenario
from tests.e2e_cpu import carried

from opd.rollout import carry as carried_file
from opd.runs.manifest import complete_steps, step_folder
from opd.runs.metrics import METRICS_FILE, parse_metrics
from opd.runs.stream import read_streamed

EQUAL = "ends equal to the uninterrupted run"
_ON_FOLDER = ("start-up", "start-up", "load", "generation", "generation", "update", "update", "save", "save", "upload")
_CARRY = (*carried.SETS, f"checkpoint.keep_last={carried.NUM_STEPS}")
_ON_S3 = ("start-up", "load", "generation", "generation", "update", "save", "upload", "upload", "save", "finish")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """A planned kill: `delay_s` after the phase is entered for the nth time; `target` is a key of `TARGETS`."""

    phase: str
    nth: int
    delay_s: float
    target: str

    def strike(self, attempt: Attempt) -> str | None:
        """Wait for the moment and kill; the phase that was struck, None if the run had ended before."""
        if self.phase != "start-up" and not attempt.reaches(self.phase, self.nth):
            return None
        if not attempt.sleep(self.delay_s):
            return None
        phase = attempt.phase
        TARGETS[self.target](attempt)
        return phase


# Seconds after a phase begins within which a kill may fall: about as long as the phase takes on two quiet cores. Phases that a
# busy machine stretches have more.
_WINDOW_S = {
    "start-up": 14.0,
    "load": 6.0,
    "generation": 0.4,
    "update": 0.3,
    "save": 0.2,
    "upload": 0.1,
    "finish": 0.05,
}


# What dies: everything at once, as when a pod goes; the process that trains; the launcher above it. Weights of the dice.
TARGETS = {"all": Attempt.kill_tree, "driver": Attempt.kill_driver, "launcher": Attempt.kill_launcher}
_WEIGHTS = (6, 2, 2)


def plan_kills(phases: Sequence[str], *, seed: int) -> list[Kill]:
    """Return one kill a phase, in a random order; kills of `finish` come last, since they end the training."""
    dice = random.Random(seed)
    early = [phase for phase in phases if phase != "finish"]
    dice.shuffle(early)
    kills = []
    for phase in early + [phase for phase in phases if phase == "finish"]:
        in_loop = phase in ("generation", "update", "save", "upload")
        kills.append(
            Kill(
                phase=phase,
                nth=dice.choice((1, 1, 2)) if in_loop else 1,
                delay_s=dice.uniform(0.0, _WINDOW_S[phase]),
                target=dice.choices(list(TARGETS), _WEIGHTS)[0],
            )
        )
    return kills


@scenario(
    done="SIGKILL at 10 random points of one run after another, store on S3; after the 4th and the 8th the machine's disk is lost too",
    promised=f"each start resumes from the newest complete step, also from the store alone; no metric is lost; {EQUAL}",
)
def kill_9_s3(context: Context) -> str:
    with context.s3_store() as (_, url, environment):
        kills = plan_kills(_ON_S3, seed=context.shared.seed + 1)
        options = {"store_url": url, "environment": environment}
        return struck_again_and_again(context, kills, lost_after=(4, 8), **options)


@scenario(
    done="SIGKILL at 10 points, store in a folder, of a run with `rollout.schedule: carry`",
    promised=f"every token has the version that made it, no row is lost or trained on twice; {EQUAL}",
)
def kill_9_carry(context: Context) -> str:
    reference = context.case("reference", sets=_CARRY)
    reference.finish()
    kills = plan_kills(_ON_FOLDER, seed=context.shared.seed + 2)
    observed = struck_again_and_again(context, kills, lost_after=(), reference=reference, sets=_CARRY)
    for case in context.cases:
        states = {
            step: case.places.store.get_json(f"{step_folder(step)}/{carried_file.CHECKPOINT_FILE}")
            for step in complete_steps([case.places.store])
        }
        carried.must_follow(states, rows_per_step=carried.NUM_ROWS)
        require(len(states) == carried.NUM_STEPS, f"checkpoints of steps {sorted(states)}")
    return observed


def struck_again_and_again(
    context: Context, kills: Sequence[Kill], *, lost_after: Container[int], reference: Case | None = None, **options
) -> str:
    """Strikes with every kill; a run that ends well before its turn is compared and followed by a fresh one.

    Args:
        reference: the uninterrupted run of these options; by default the one that scenarios share.
    """
    waiting, phases, targets = list(kills), Counter[str](), Counter[str]()
    num_runs = 0
    while waiting:
        num_runs += 1
        case = context.case(f"run-{num_runs}", **_own_prefix(options, num_runs))
        # A process that learns of the launcher's death in its last step ends well.
        while waiting and not case.places.store.exists("result.json"):
            newest, attempt = case.newest_complete(), case.start()
            kill = waiting[0]
            phase = kill.strike(attempt)
            if phase is None:
                require(attempt.wait() == 0, f"attempt {attempt.number} failed before it was killed; see {attempt.log}")
                case.must_have_resumed(attempt, newest)
                break
            waiting.pop(0)
            phases[phase.split()[0]] += 1
            targets[kill.target] += 1
            context.say(f"strike {len(kills) - len(waiting)} of {len(kills)}: {kill.target} in {phase}")
            if any(line.startswith("generation") for line in attempt.phases):
                case.must_have_resumed(attempt, newest)
            attempt.must_leave_nothing()
            if len(kills) - len(waiting) in lost_after:
                shutil.rmtree(case.folder / "out", ignore_errors=True)  # a strike at its start may leave none
                context.say("the disk is lost")
        if not case.places.store.exists("result.json"):
            case.finish_from_newest(attempt)
        context.must_equal((reference or context.shared.reference()).places, case.places, num_starts=case.num_starts)
    struck = ", ".join(f"{name} {count}" for name, count in sorted(phases.items()))
    who = ", ".join(f"{name} {count}" for name, count in sorted(targets.items()))
    return f"{len(kills)} strikes in {num_runs} run{'s' * (num_runs > 1)} (in {struck}; of {who}); equal"


def _own_prefix(options: dict, number: int) -> dict:
    """Runs of one scenario must not find each other's result in one store."""
    return {**options, "store_url": f"{options['store_url']}/{number}"} if "store_url" in options else options


@scenario(
    done="SIGTERM while models load, then in the update of step 3 with a checkpoint every 30 steps",
    promised=f"exit 130; the step is finished and saved, none is trained twice; {EQUAL}",
)
def sigterm(context: Context) -> str:
    case = context.case("run", sets=("trainer.save_freq=30",))
    early = case.start()
    require(early.reaches("load"), "the run ended before it loaded its models")
    early.process.send_signal(signal.SIGTERM)
    require(early.wait() == 130, f"SIGTERM while loading: exit {early.process.returncode}; see {early.log}")
    early.must_leave_nothing()
    attempt = case.start()
    require(attempt.reaches("update", 3), "the run ended before its third step")
    attempt.process.send_signal(signal.SIGTERM)
    require(attempt.wait() == 130, f"exit {attempt.process.returncode}; see {attempt.log}")
    attempt.must_leave_nothing()
    saved = case.newest_complete()
    require(saved is not None and saved >= 3, f"the newest complete step is {saved}")
    require(f"saved step {saved}" in attempt.output, f"it did not say which step it saved; see {attempt.log}")
    case.must_have_resumed(case.finish(), saved)
    twice = _trained_twice(case)
    require(not twice, f"steps {twice} were trained twice")
    context.must_equal_reference(case)
    return f"exit 130 twice, step {saved} saved, no step trained twice; equal"


def _trained_twice(case: Case) -> list[int]:
    steps: Counter[int] = Counter()
    store = case.places.store
    for name in store.children("attempts"):
        rows, _ = parse_metrics(read_streamed(store, f"attempts/{name}/{METRICS_FILE}"), attempt=int(name))
        steps.update(row["step"] for row in rows if "training/global_step" in row)
    return sorted(step for step, count in steps.items() if count > 1)


@scenario(
    done="SIGKILL of everything between the last checkpoint and result.json",
    promised=f"the next start trains nothing and writes the result; {EQUAL}",
)
def kill_before_result(context: Context) -> str:
    case = context.copy_of_unfinished("run")
    newest = case.newest_complete()
    attempt = case.finish()
    case.must_have_resumed(attempt, newest)
    trained = [line for line in attempt.phases if line.startswith("update")]
    require(not trained, f"it trained again: {trained}")
    context.must_equal_reference(case)
    again = case.finish()
    require("finished in attempt" in again.output, "a start after the result does not say that the run is over")
    return f"resumed from step {newest}, no update, result written; a further start says so and exits 0; equal"
