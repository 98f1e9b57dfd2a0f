"""Trees of a spec with some keys changed, and what is wrong with them."""

import copy

import pytest

from opd.experiment import SpecError, parse_tree
from opd.experiment.tree import get_path, set_path


def problems_of(tree):
    with pytest.raises(SpecError) as caught:
        parse_tree(tree)
    return caught.value.problems


def tree_of(minimal, kind, **changes):
    tree = minimal(kind)
    for path, value in changes.items():
        if value is None:
            above, _, last = path.rpartition(".")
            section = get_path(tree, above) if above else tree
            if isinstance(section, dict):
                section.pop(last, None)
        else:
            set_path(tree, path.replace("__", "."), copy.deepcopy(value))  # a mend may set a key in it
    return tree
