"""Which token has which slot."""

import torch

from opd.losses.held import HeldTokens


def flags(text: str) -> torch.Tensor:
    return torch.tensor([letter == "x" for letter in text])


def test_tokens_keep_their_slots_and_new_ones_get_those_given_up():
    held = HeldTokens(3, 8, torch.device("cpu"))
    assert held.update(flags("x.xx"), 0).tolist() == [0, -1, 1, 2]
    assert held.update(flags("x..x.xx"), 4).tolist() == [-1, 1, -1]  # room for one of two
    assert held.token_of_slot.tolist() == [0, 5, 3]
    assert int(held.num_held()) == 3
    assert held.missing(flags("x..x.xxx"), 2).tolist() == [6, 7]


def test_wanted_tokens_that_were_not_held_are_put_into_free_slots():
    held = HeldTokens(3, 4, torch.device("cpu"))
    held.update(flags("...x"), 0)
    wanted = flags("xx.x")
    missing, holes = held.missing(wanted, 2), held.free_slots(2)
    held.put(holes, missing)
    assert held.token_of_slot.tolist() == [3, 0, 1]


def test_without_slots_nothing_is_held():
    held = HeldTokens(0, 3, torch.device("cpu"))
    assert held.update(flags("xx."), 0).tolist() == [-1, -1, -1]
    assert int(held.num_held()) == 0
