"""The schedule carry by itself, over rows of hand-made lengths: no server, no model."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from statistics import mean

import pytest

from opd.config import parse_tree
from opd.rollout.carry import Carry, Growth, Slot, Update


class Made:
    """In the place of data and server: row `number` has `length(number)` tokens, whose ids are number and place."""

    def __init__(self, length: Callable[[int], int], *, num_prompts: int = 10_000, num_drawn: int = 4) -> None:
        self.length, self.version, self.position = length, 0, 0
        self.rounds: list[list[list[int]]] = []
        self._num_prompts, self._num_drawn = num_prompts, num_drawn

    def draw(self) -> list[tuple[int, int, int]]:
        start = self.position
        self.position += self._num_drawn
        return [((start + i) % self._num_prompts, 0, 1000) for i in range(self._num_drawn)]

    def advance(self, slots: list[Slot], num_tokens: int) -> list[list[Growth]]:
        self.rounds.append([[row.number for row in slot] for slot in slots])
        return [self._grown(slot, num_tokens) for slot in slots]

    def _grown(self, slot: Slot, num_left: int) -> list[Growth]:
        grown = []
        for row in slot:
            if not num_left:
                break
            there, length = len(row.tokens), self.length(row.number)
            num = min(num_left, length - there)
            num_left -= num
            tokens = [1000 * row.number + place for place in range(there, there + num)]
            grown.append(
                Growth(tokens=tokens, version=self.version, is_complete=there + num == length, num_read=1 + there)
            )
            if there + num < length:
                break
        return grown


def _updates(carry: Carry, made: Made, steps: range) -> list[Update]:
    out = []
    for made.version in steps:
        out.append(carry.next_update(version=made.version, draw=made.draw, advance=made.advance))
    return out


def _warm(**changes: int) -> Carry:
    """Without the warm fill, so that what happens can be followed by hand; a round is of 4 tokens."""
    carry = Carry(**{"rows": 2, "in_flight": 4, "max_age": 8, "longest": 64} | changes)
    carry.restore(carry.state() | {"is_cold": False})
    return carry


def _log_normal(number: int) -> int:
    return min(512, max(1, round(random.Random(number).lognormvariate(4.0, 0.9))))


def test_an_update_counts_what_the_server_read_for_it():
    made = Made(lambda number: 6)
    [update] = _updates(_warm(), made, range(1))
    # Four prompts; then each of the four rows with its 4 tokens, and, for what is left of the round, a follower's prompt.
    assert made.rounds == [[[0, 4], [1, 5], [2, 6], [3, 7]]] * 2
    assert update.metrics(0)["rollout/tokens_read"] == 4 * 1 + 4 * (1 + 4) + 4 * 1


def test_rows_end_by_their_lengths_and_the_others_keep_their_tokens_under_new_weights():
    made = Made(
        lambda number: {0: 9, 1: 3, 2: 6, 3: 4}.get(number, 40)
    )  # in flight at once: 0 to 3; 4 to 7 may follow within the round
    carry = _warm()
    first, second = _updates(carry, made, range(2))
    assert [row.number for row in first.rows] == [1, 3], "those that ended first, in virtual time"
    assert made.rounds[0] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [row.number for row in second.rows] == [2, 0]
    assert [row.pieces for row in second.rows] == [[(0, 4), (1, 2)], [(0, 4), (1, 5)]]
    assert second.rows[1].tokens == list(range(9))
    row_5 = next(row for row in carry.running if row.number == 5)
    assert row_5.pieces[0] == (0, 1), "it got the token of the round that row 1 left over"


def test_a_row_that_ends_at_the_same_time_comes_later_if_it_was_begun_later():
    made = Made(lambda number: 4)
    first, second = _updates(_warm(), made, range(2))
    assert [row.number for row in first.rows + second.rows] == [0, 1, 2, 3]
    assert len(made.rounds) == 1, "the second update was complete by then"


def test_no_row_is_lost_trained_on_twice_or_made_by_other_weights_than_it_says():
    made, carry = Made(_log_normal, num_drawn=16), Carry(rows=16, in_flight=32, max_age=8, longest=512)
    updates = _updates(carry, made, range(60))
    trained = [row for update in updates for row in update.rows]
    assert [len(update.rows) for update in updates] == [16] * 60
    assert max(Counter(row.number for row in trained).values()) == 1
    for row in trained:
        assert row.tokens == [1000 * row.number + place for place in range(_log_normal(row.number))]
        assert sum(num for _, num in row.pieces) == len(row.tokens)
        assert row.pieces == sorted(row.pieces), "each version once, the earlier first"
    on_their_way = [*carry.running, *carry.complete, *carry.waiting]
    prompts = Counter(row.index for row in trained) + Counter(row.index for row in on_their_way)
    assert prompts == Counter(range(made.position)), "each prompt that was drawn is answered once, or will be"


@pytest.mark.parametrize(("in_flight", "max_age"), [(8, 2), (16, 3), (16, 5), (32, 7)])
def test_no_token_is_older_than_the_bound(in_flight, max_age):
    made, carry = Made(_log_normal, num_drawn=8), Carry(rows=8, in_flight=in_flight, max_age=max_age, longest=512)
    ages = [update.metrics(step)["rollout/age_max"] for step, update in enumerate(_updates(carry, made, range(80)))]
    assert max(ages) == max_age, "it is reached, and not passed"
    free = Carry(rows=8, in_flight=in_flight, max_age=1000, longest=512)
    assert (
        max(u.metrics(s)["rollout/age_max"] for s, u in enumerate(_updates(free, Made(_log_normal), range(80))))
        > max_age
    )


def test_others_hold_while_an_update_waits_for_a_row_that_may_get_no_older():
    made = Made(lambda number: 50 if number == 0 else 4)
    updates = _updates(_warm(max_age=3), made, range(4))
    assert 0 in [row.number for row in updates[3].rows]
    assert updates[3].metrics(3)["rollout/age_max"] == 3
    alone = [slots for slots in made.rounds if slots == [[0]]]
    assert len(alone) >= 8, "a round of it alone for each 4 of its tokens"
    assert sum(update.metrics(0)["rollout/rounds_waited"] for update in updates) == len(alone)


@pytest.mark.parametrize("times", [2, 3, 4])
def test_the_default_bound_of_the_age_keeps_nobody_waiting_where_the_longest_is_six_times_the_mean(times):
    rollout = {"schedule": "carry", "in_flight": times * 32, "num_samples": 4}
    tree = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "rollout": rollout}
    sizes = {"data": {"train_batch_size": 8}, "actor": {"ppo_mini_batch_size": 8}}
    in_flight, max_age = parse_tree(tree | sizes).spec.carried
    carry = Carry(rows=32, in_flight=in_flight, max_age=max_age, longest=512)
    made = Made(lambda number: min(512, round(random.Random(number).lognormvariate(4.1, 0.8))), num_drawn=32)
    updates = _updates(carry, made, range(60))
    assert {update.metrics(0)["rollout/rounds_waited"] for update in updates} == {0.0}
    tokens, rounds = sum(len(row.tokens) for u in updates[1:] for row in u.rows), sum(u.num_rounds for u in updates[1:])
    assert tokens > 0.93 * rounds * in_flight * carry.round_tokens, "nearly every slot decodes all of every round"


@pytest.mark.parametrize(("in_flight", "bound"), [(None, 16), (128, 8), (192, 16), (640, 40)])
def test_the_default_bound_of_the_age_follows_what_is_in_flight(in_flight, bound):
    tree = {"kind": "opd", "model": {"path": "m"}, "teacher": {"path": "t"}, "data": {"train_batch_size": 128}}
    own = {} if in_flight is None else {"in_flight": in_flight}
    spec = parse_tree(tree | {"rollout": {"schedule": "carry"} | own}).spec
    assert spec.carried == (in_flight or 256, bound)


@pytest.mark.slow
def test_the_first_updates_are_no_shorter_than_the_others():
    def lengths(*, is_cold: bool) -> list[float]:
        """Mean lengths of 20 updates over 8 runs."""
        runs = []
        for seed in range(8):
            made = Made(lambda number, seed=seed: _log_normal(100_000 * seed + number), num_drawn=32)
            carry = Carry(rows=32, in_flight=64, max_age=100, longest=512)
            carry.restore(carry.state() | {"is_cold": is_cold})
            runs.append([mean(len(row.tokens) for row in update.rows) for update in _updates(carry, made, range(20))])
        return [mean(of_update) for of_update in zip(*runs, strict=True)]

    everywhere = mean(map(_log_normal, range(20_000)))
    cold, warm = lengths(is_cold=False), lengths(is_cold=True)
    assert cold[0] < 0.5 * everywhere, "the shorter half of those that began together"
    assert warm[0] > 0.85 * everywhere
    assert mean(warm[:5]) == pytest.approx(everywhere, rel=0.1)


def test_what_the_warm_fill_throws_away_is_counted_and_asked_again():
    made, carry = Made(lambda number: 50 if number == 3 else 10), Carry(rows=2, in_flight=4, max_age=8, longest=64)
    (update,) = _updates(carry, made, range(1))
    assert update.num_thrown_away == 50 + 10 * ((update.num_thrown_away - 50) // 10) > 100
    assert (len(update.rows), update.num_failed, update.num_ended) == (2, 0, 2 + update.num_filled)
    assert update.num_filled == 1 + (update.num_thrown_away - 50) // 10
    asked = Counter(row.index for row in [*carry.running, *carry.complete, *carry.waiting, *update.rows])
    assert asked == Counter(range(made.position))


def test_a_restored_schedule_goes_on_as_if_nothing_had_been():
    made, carry = Made(_log_normal), Carry(rows=4, in_flight=9, max_age=6, longest=512)
    _updates(carry, made, range(10))
    state, position = json.loads(json.dumps(carry.state())), made.position
    whole = _updates(carry, made, range(10, 20))
    again, other = Made(_log_normal), Carry(rows=4, in_flight=9, max_age=6, longest=512)
    again.position = position
    other.restore(state)
    assert _updates(other, again, range(10, 20)) == whole
    assert other.state() == carry.state()


def test_a_state_whose_versions_are_not_of_its_tokens_is_refused():
    made, carry = Made(_log_normal), _warm()
    _updates(carry, made, range(2))
    state = carry.state()
    state["running"][0]["tokens"].append(1)
    with pytest.raises(ValueError, match="versions of another number"):
        carry.restore(state)


def test_an_update_never_holds_an_answer_to_the_same_prompt_twice():
    made, carry = Made(_log_normal, num_prompts=20, num_drawn=4), Carry(rows=8, in_flight=16, max_age=8, longest=512)
    updates = _updates(carry, made, range(40))
    assert all(len({row.place for row in update.rows}) == 8 for update in updates)
    counts = Counter(row.index for update in updates for row in update.rows)
    assert max(counts.values()) - min(counts.values()) <= 4, "and every prompt has its turn"


def test_a_row_that_fails_is_given_up_counted_and_followed_by_others():
    made = Made(lambda number: 6)
    grown = made._grown
    made._grown = lambda slot, num: (
        [Growth(tokens=[], version=-1, is_complete=False, error="lost")] if slot[0].number == 1 else grown(slot, num)
    )
    (update,) = _updates(_warm(), made, range(1))
    assert (update.num_failed, update.num_ended, update.first_error) == (1, 3, "lost")
    assert [row.number for row in update.rows] == [0, 2]


def test_a_failure_of_the_one_row_that_an_update_waits_for_does_not_end_the_run():
    made = Made(lambda number: 50 if number == 0 else 4)
    grown = made._grown
    made._grown = lambda slot, num: (
        [Growth(tokens=[], version=-1, is_complete=False, error="lost")]
        if [row.number for row in slot] == [0]
        else grown(slot, num)
    )
    updates = _updates(_warm(max_age=3), made, range(6))
    assert [update.num_failed for update in updates] == [0, 0, 0, 1, 0, 0]
    assert 0 not in [row.number for update in updates for row in update.rows]
    assert [[0]] in made.rounds, "it was asked for alone"


def test_a_round_in_which_all_rows_fail_ends_the_run():
    made = Made(lambda number: 6)
    made._grown = lambda slot, num: [Growth(tokens=[], version=-1, is_complete=False, error="the server went away")]
    with pytest.raises(RuntimeError, match="all rows of a round failed; the first: the server went away"):
        _updates(_warm(), made, range(1))
