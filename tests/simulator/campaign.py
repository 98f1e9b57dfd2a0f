"""Many schedules: their seeds and processes, and the replay of one."""

import argparse
import gc
import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from functools import cache, partial
from multiprocessing import get_context
from statistics import mean
from typing import Any, NamedTuple

from tests.commit import UNKNOWN, this_commit
from tests.simulator import bugs, seams
from tests.simulator.plan import Site, Sites, num_saves
from tests.simulator.scheduler import Failure
from tests.simulator.world import READER, World

STEPS = 150
# Their worlds, some 400 KB each, go with the process that has played them, which is quicker than to look for garbage.
PER_TASK = 250
SCHEDULES = 10_000
# Runs of these numbers show the places where a fault can be aimed: undisturbed ones, and others. They have every kind of store
# and disk, and seeds that no schedule has.
NUM_SHOWN, NUM_DISTURBED = 32, 96
FIRST_SHOWN = 10**12
commit = cache(this_commit)
"""Return the commit of the code under test, as it was at the first call."""


class Tally(NamedTuple):
    """Sums over schedules; `failures` are seeds with what failed."""

    num: int
    num_faults: int
    failures: list[tuple[int, str]]


def describe_failure(seed: int, steps: int, what: str) -> str:
    """Return the text of a failure, with what replays it."""
    return f"FAILED seed {seed} commit {commit()}: {what}\n  replay: make simulate SEED={seed} STEPS={steps}"


def find_sites(steps: int) -> tuple[Sites, list[tuple[int, str]]]:
    """Return the places at which a fault can be aimed.

    Returns:
        The sites, and the runs that failed although nothing disturbed them before the power cut at their end.
    """
    first: dict[str, set[Site]] = {}
    later: dict[str, set[Site]] = {}
    calls: dict[str, list[float]] = {}
    failures = []
    for number in range(NUM_SHOWN + NUM_DISTURBED):
        seed = FIRST_SHOWN + number
        world = World(seed, steps if number >= NUM_SHOWN else 0)
        world.met = set()
        try:
            world.play()
        except Failure as failure:
            failures.append((seed, str(failure)))
        store = str(world.plan.store_url)
        reached = {
            (site, is_later) for site, is_later in world.met if site.thread != READER
        }  # it looks when all is over
        first.setdefault(store, set()).update(site for site, is_later in reached if not is_later)
        later.setdefault(store, set()).update(site for site, is_later in reached if is_later)
        if number < NUM_SHOWN:
            plan = world.plan
            calls.setdefault(store, []).append(world.num_calls / (1 + num_saves(plan.num_steps, plan.save_every)))
    sites = Sites(
        first={store: sorted(found) for store, found in first.items()},
        later={store: sorted(found) for store, found in later.items()},
        calls_of_a_save={store: mean(found) for store, found in calls.items()},
    )
    return sites, failures


def play(seeds: Sequence[int], steps: int, sites: Sites) -> Tally:
    """Play the schedules of these seeds."""
    num_faults, failures = 0, []
    for seed in seeds:
        world = World(seed, steps, sites=sites)
        try:
            world.play()
        except Failure as failure:
            failures.append((seed, str(failure)))
        num_faults += world.num_faults
    return Tally(len(seeds), num_faults, failures)


def play_all(seeds: range, options: argparse.Namespace, sites: Sites, out: Any) -> Tally:
    """In as many processes as asked for; ends early where that is asked for. Tells how far it is."""
    tally = Tally(0, 0, [])
    parts = [seeds[start : start + PER_TASK] for start in range(0, len(seeds), PER_TASK)]
    call = partial(play, steps=options.steps, sites=sites)
    gc.disable()
    with get_context("fork").Pool(options.processes, maxtasksperchild=1) as pool:
        for part in pool.imap(call, parts):
            tally = Tally(*(one + other for one, other in zip(tally, part, strict=True)))
            print(f"{tally.num:,} of {len(seeds):,}, {len(tally.failures)} failed", file=out, flush=True)
            if tally.failures and options.until_failure:
                break
    return tally


def replay(seed: int, steps: int, sites: Sites, out: Any) -> int:
    """One schedule with every call that it makes."""
    world = World(seed, steps, sites=sites if seed < FIRST_SHOWN else None)
    world.log = []
    failure: Failure | None = None
    try:
        world.play()
    except Failure as error:
        failure = error
    print(*world.log, world.plan, sep="\n", file=out)
    if failure is not None:
        traceback.print_exception(failure, file=out)
    verdict = "holds" if failure is None else f"FAILED: {failure}"
    print(f"seed {seed} steps {steps} commit {commit()} trace {world.trace & (2**64 - 1):016x}: {verdict}", file=out)
    return failure is not None


def main(argv: list[str] | None = None) -> int:
    if os.environ.get("PYTHONHASHSEED") != "0":  # a set of names is walked in the same order in every process
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulator", *sys.argv[1:]])
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="replay this one; with --count the first of so many")
    parser.add_argument("--steps", type=int, default=STEPS, help="decisions of a schedule before it calms down")
    parser.add_argument("--count", type=int, help=f"schedules (default: {SCHEDULES:,}, of a seed made from the commit)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--until-failure", action="store_true", help="end at the first one that fails")
    parser.add_argument(
        "--bugs", action="store_true", help="look for each planted bug instead, in --count schedules at most"
    )
    options = parser.parse_args(argv)
    if options.bugs:
        return bugs.hunt_all(options.count or bugs.MOST_SCHEDULES, options.processes, sys.stdout)
    commit()  # of the code that is imported now; the work tree may change until the end
    seams.install()
    out, sys.stdout = sys.stdout, seams.silence()
    logging.disable(logging.CRITICAL)
    sites, failures = find_sites(options.steps)
    for seed, what in failures:
        print(describe_failure(seed, options.steps if seed >= FIRST_SHOWN + NUM_SHOWN else 0, what), file=out)
    if failures and (options.seed or 0) < FIRST_SHOWN:
        return 1
    if options.count is None and options.seed is not None:
        return replay(options.seed, options.steps, sites, out)
    first = options.seed if options.seed is not None else 0 if commit() == UNKNOWN else int(commit()[:7], 16)
    began_s = time.monotonic()
    tally = play_all(range(first, first + (options.count or SCHEDULES)), options, sites, out)
    seconds = time.monotonic() - began_s
    print(
        f"{tally.num:,} schedules from seed {first}, commit {commit()}: {len(tally.failures)} failed, "
        f"{tally.num_faults / tally.num:.1f} faults in each; {seconds:,.0f} s in {options.processes} processes",
        *(describe_failure(seed, options.steps, what) for seed, what in sorted(tally.failures)),
        sep="\n",
        file=out,
    )
    out.flush()
    return bool(tally.failures)
