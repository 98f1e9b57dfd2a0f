"""The reader agrees with Helm's on everything it accepts, and refuses what the two would read differently.

The expected values of Helm's reader were taken from sigs.k8s.io/yaml 1.6.0 (YAMLToJSON), which Helm 4 reads values with.
"""

import time

import pytest

from opd.experiment import SpecError
from opd.experiment.base import MAX_INTEGER
from opd.experiment.reader import read_text, without_nulls


def read(text, **kwargs):
    return read_text(text, origin="t", **kwargs).tree


def refusal(text, **kwargs):
    with pytest.raises(SpecError) as caught:
        read(text, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("scalar", "value"),
    [("1e-6", 1e-6), ("1E3", 1000), ("1.0", 1), ("1.e3", 1000), (".5", 0.5), ("+5", 5), ("-0", 0), ("12e03", 12000),
     ("1e16", 1e16), ("1e21", 1e21), ("1:30", "1:30"), ("2001-01-01", "2001-01-01"), ("0x", "0x"), ("tRue", "tRue"),
     ("True", True), ("FALSE", False), ('"no"', "no"), ("'0x1f'", "0x1f"), ("nope", "nope"), ("1.2.3", "1.2.3"), ("_1", "_1")],
)  # fmt: skip
def test_a_scalar_is_read_as_helm_reads_it(scalar, value):
    found = read(f"key: {scalar}")["key"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "scalar",
    ["yes", "No", "ON", "off", "y", "N", "010", "-012", "08", "0x1f", "0X1F", "-0x1f", "0o17", "0b11", "1_000", "1_0.5",
     "2024_01_01", ".inf", "-.INF", ".nan", "1e400", "0_1"],
)  # fmt: skip
def test_a_scalar_that_readers_disagree_on_is_refused_with_the_advice_to_quote_it(scalar):
    error = refusal(f"a: 1\nkey: {scalar}")
    (problem,) = error.problems
    assert (problem.path, problem.source) == ("key", "line 2")
    assert "quote it" in problem.fix or "finite" in problem.rule


@pytest.mark.parametrize("key", ["n", "y", "on", "No", "1", "1.5", "true", "null", "0x1"])
def test_an_unquoted_key_that_is_no_string_for_helm_is_refused(key):
    # `rollout: {n: 8}` reaches a Helm template as {"false": 8}: that is why the spec says num_samples.
    assert refusal(f"rollout:\n  {key}: 8").problems[0].path == f"rollout.{key}"
    assert read(f'rollout:\n  "{key}": 8') == {"rollout": {key: 8}}


@pytest.mark.parametrize(
    "text", ["a: {b: ~, c: 1}", "a: {b: null, c: 1}", "a:\n  b:\n  c: 1", '{"a": {"b": null, "c": 1}}']
)
def test_null_unsets_a_key_as_in_helm(text):
    assert without_nulls(read(text, is_json=text.startswith("{"))) == {"a": {"c": 1}}


def test_null_below_cluster_stays_since_it_unsets_a_default_of_the_chart():
    assert without_nulls(read("cluster: {a: null}")) == {"cluster": {"a": None}}


def test_an_integer_beyond_2_53_is_refused_and_the_bound_itself_is_not():
    assert read(f"key: {MAX_INTEGER}") == {"key": 2**53}
    assert "2^53" in str(refusal(f"key: {2**53 + 1}"))
    assert "2^53" in str(refusal(f"key: -{2**64}"))
    assert "2^53" in str(refusal("key: " + "9" * 4301))  # more digits than Python reads as an integer


def test_json_written_by_helm_gives_the_same_tree():
    yaml_tree = read("a: 1e-6\nb: 1.0\nc: 1e16\nd: 1e21\ne: '1:30'\nf: 'no'\ng: '0x1f'\nh: 5\ni: [1.5, -0.0]")
    as_helm_writes = (
        '{"a":0.000001,"b":1,"c":10000000000000000,"d":1e+21,"e":"1:30","f":"no","g":"0x1f","h":5,"i":[1.5,-0]}'
    )
    json_tree = read(as_helm_writes, is_json=True)
    assert json_tree == yaml_tree
    assert [type(v) for v in json_tree.values()] == [type(v) for v in yaml_tree.values()]


def test_a_file_whose_aliases_expand_without_end_is_refused_in_one_line_and_at_once():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    start = time.process_time()
    error = refusal("\n".join(levels))
    assert time.process_time() - start < 1
    assert error.exit_code == 2
    (problem,) = error.problems
    assert "100,000 values" in problem.rule


def test_a_duplicate_key_is_refused_with_both_lines():
    (problem,) = refusal("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n").problems
    assert (problem.path, problem.source) == ("b.c", "line 5")
    assert "line 3" in problem.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "found nothing"), ("- a\n", "found a list"), ("just text", "found a str"), ("a: 1\n---\nb: 2\n", "one document"),
     ("a: !!str 5", "tags"), ("a: [1", "valid YAML"), ("a: \x01", "valid YAML"), ("a: " + "[" * 3000, "YAML|deep"),
     ("a: &x {b: 1}\nc:\n  <<: *x", "merge keys")],
)  # fmt: skip
def test_a_document_that_is_no_mapping_is_refused_by_what_it_is(text, words):
    assert any(word in str(refusal(text)) for word in words.split("|"))


def test_a_syntax_error_names_the_line_but_does_not_quote_the_file():
    error = str(refusal("kind: opd\nHF_TOKEN: hf_secret: x\n"))
    assert "line 2" in error
    assert "hf_secret" not in error
