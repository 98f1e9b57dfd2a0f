"""What is generated from the spec is up to date, complete and strict."""

import json
import re

import pytest
import yaml
from tests.charts.helm import CHARTS, DIGEST, EXPERIMENTS, ROOT, kind_of, objects, one, refusal
from tests.config.field_docs import field_docs
from tests.minimal import MINIMAL

from chartgen.__main__ import drifted, generated
from chartgen.chart import charts
from chartgen.constants import constants, locked_version
from opd.config import FILE_KINDS, static_defaults
from opd.config.cluster import cluster_defaults, parse_cluster
from opd.config.errors import SpecError
from opd.config.reader import read_text


@pytest.mark.slow
def test_a_changed_file_is_noticed(tmp_path):
    for path, text in generated().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "uv.lock").symlink_to(ROOT / "uv.lock")
    assert drifted(tmp_path) == {}
    values = tmp_path / "charts/opd/values.yaml"
    values.write_text(values.read_text().replace("seed: 42", "seed: 43"))
    (tmp_path / "charts/eval/values.schema.json").unlink()
    assert [str(path) for path in drifted(tmp_path)] == ["charts/opd/values.yaml", "charts/eval/values.schema.json"]


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_values_hold_every_default_that_depends_on_the_kind_alone_and_the_cluster_s(kind):
    values = read_text((CHARTS / kind / "values.yaml").read_text(), origin="values.yaml").tree
    assert {"kind": kind, **values} == {**static_defaults(kind), "cluster": cluster_defaults(kind)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_a_file_must_say_its_kind_since_the_tool_could_not_read_it_otherwise(kind):
    without = {key: value for key, value in MINIMAL[kind].items() if key != "kind"}
    assert "missing property 'kind'" in refusal(kind, without, experiment="")


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_key_is_in_the_values(kind):
    values = (CHARTS / kind / "values.yaml").read_text()
    for doc in field_docs(kind):
        assert re.search(rf"^[ #]*{doc.path.rpartition('.')[2]}:", values, re.MULTILINE)


def objects_with_keys(node, path=""):
    """Every schema node that declares keys: (dotted path, node)."""
    if "properties" in node:
        yield path, node
        for key, child in node["properties"].items():
            yield from objects_with_keys(child, f"{path}.{key}")
    if "items" in node:
        yield from objects_with_keys(node["items"], f"{path}[]")


@pytest.mark.parametrize("kind", FILE_KINDS)
def test_every_section_refuses_unknown_keys(kind):
    schema = json.loads((CHARTS / kind / "values.schema.json").read_text())
    sections = dict(objects_with_keys(schema))
    assert len(sections) > 20
    assert [path for path, node in sections.items() if node.get("additionalProperties") is not False] == []


@pytest.mark.parametrize(
    "path", ["nodes", "trainer.nodes", "cluster.nodes", "cluster.worker.cpu", "cluster.cleanUp.failed.x"]
)
def test_an_unknown_key_is_refused_with_its_place(path):
    layer = value = {}
    *parents, last = path.split(".")
    for key in parents:
        value = value.setdefault(key, {})
    value[last] = 1
    assert f"additional properties '{last}' not allowed" in refusal("opd", layer)


def test_a_null_is_no_way_to_drop_a_default():
    assert "missing property 'seed'" in refusal("opd", {"seed": None})
    assert "missing property 'cleanUp'" in refusal("opd", {"cluster": {"cleanUp": None}})


def test_an_integer_that_json_cannot_carry_exactly_is_refused():
    assert "maximum" in refusal("opd", {"trainer": {"total_steps": 2**53 + 2}})


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILE_KINDS)
def test_the_least_that_a_chart_needs_is_what_the_spec_needs(kind):
    assert one(objects(kind, MINIMAL[kind], experiment=""), "RayJob")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_cluster_part_of_every_example_is_valid_for_the_tool_too(name):
    tree = yaml.safe_load(EXPERIMENTS[name].read_text()).get("cluster", {})
    cluster = parse_cluster({**tree, "image": {"ref": DIGEST}}, kind_of(name))
    assert cluster.image.ref == DIGEST


@pytest.mark.slow
def test_the_tool_names_the_nearest_key_of_the_cluster_part():
    with pytest.raises(SpecError) as caught:
        parse_cluster({"lifecycles": "rules", "head": {"shmGb": 3}, "extraEnv": [{"nam": "A"}]}, "opd")
    fixes = {problem.path: problem.fix for problem in caught.value.problems}
    assert fixes["cluster.lifecycles"] == "did you mean cluster.lifecycle?"
    assert fixes["cluster.head.shmGb"] == "did you mean cluster.head.shmGib?"
    assert fixes["cluster.extraEnv.0.nam"] == "did you mean cluster.extraEnv.0.name?"
    assert fixes["cluster.extraEnv.0.name"] == "set cluster.extraEnv.0.name"


def test_the_tool_lays_a_partial_section_over_the_defaults_as_helm_does():
    head = parse_cluster({"head": {"requests": {"cpu": 7}}}, "opd").head
    assert head.requests == {"cpu": 7}
    assert head.shm_gib == 2


@pytest.mark.slow
def test_constants_come_from_the_lock_and_the_spec():
    found = constants(ROOT / "uv.lock")
    assert found["rayVersion"] == locked_version(ROOT / "uv.lock", "ray")
    assert found["maxNameChars"] == 47


def test_charts_and_kinds_are_the_same():
    folders = {path.name for path in CHARTS.iterdir() if (path / "Chart.yaml").is_file()}
    assert folders == {*FILE_KINDS, "opd-lib"}
    assert [chart.kind for chart in charts()] == list(FILE_KINDS)
