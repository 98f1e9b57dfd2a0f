"""The template of a teacher's own prompt: names in braces, braces that are text, and what is no template."""

import pytest

from opd.experiment import SpecError, parse_tree
from opd.experiment.prompt_template import filled, names_in


def test_names_are_filled_and_doubled_braces_are_text():
    values = {"prompt": "1+1=", "reward_model.ground_truth": "{2}"}
    found = filled("{prompt} \\boxed{{{reward_model.ground_truth}}}", values.__getitem__)
    assert found == "1+1= \\boxed{{2}}"


def test_columns_are_named_once_in_their_order_and_the_prompt_is_none():
    assert names_in("{b.c} {prompt} {{x}} {a} {b.c}") == ["b.c", "prompt", "a"]


@pytest.mark.parametrize("template", ["{}", "\\boxed{x", "x}", "{a:>3}", "{a!r}", "{a[0]}", "{a{b}}"])
def test_what_is_no_template_is_refused_with_the_way_to_write_a_brace(minimal, template):
    tree = minimal("opd") | {"teacher": {"path": "t", "prompt": template}}
    with pytest.raises(SpecError) as caught:
        parse_tree(tree)
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("teacher.prompt", template)
    assert "a brace that is text is written twice ({{ }})" in problem.rule
