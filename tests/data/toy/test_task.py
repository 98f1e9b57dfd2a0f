from opd.data.toy.task import Problem, all_problems, split_problems


def test_every_ordered_pair_is_in_exactly_one_split():
    splits = split_problems()
    assert sorted(splits.train + splits.heldout) == all_problems()
    assert len(all_problems()) == len(set(all_problems())) == 100 * 100


def test_both_orders_of_a_pair_are_on_the_same_side():
    for side in split_problems()[:2]:
        members = set(side)
        assert all(Problem(p.b, p.a) in members for p in members)


def test_the_split_is_the_one_the_committed_models_were_trained_on():
    # Golden: the first held-out problems. If the salt or the hash changes, the models must be made again.
    assert [p.question for p in split_problems().heldout[:3]] == ["00+13=", "00+22=", "00+24="]
