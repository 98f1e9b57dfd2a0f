"""The schedule carry by itself, over rows of hand-made lengths: no server, no model."""

import json
import random
from collections import Counter
from collections.abc import Callable

import pytest

from opd.experiment import parse_tree
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
