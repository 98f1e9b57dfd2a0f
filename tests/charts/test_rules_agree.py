"""Helm and the tool agree on 500 mutated specs: both refuse with one clear message, or both give the trainer the same run."""

import collections
import copy
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from hypothesis import Phase, given, settings
from tests.charts.helm import CHARTS, EXAMPLE_OF, EXPERIMENTS, RUN, helm, one, parsed
from tests.charts.mutations import ERRORS, TREES, edit, mutated

from opd import launch
from opd.config import ConvertSpec, SpecError, load_text
from opd.config.cluster.rules import load_cluster
from opd.config.verl import RunFacts, compute_overrides

# 500 together: hypothesis is asked for each class by itself, since it does not spread evenly over choices.
NUM_VALID, NUM_PER_ERROR = 240, 20
FACTS = RunFacts(run_id=RUN, run_dir=f"outputs/{RUN}")
# Only the charts see these: the tool learns of them by rendering.
CHARTS_ONLY = {"rule (cluster)"}
CLEAR = ("  rule:  ", "values don't meet the specifications of the schema")
TRACES = ("panic", "nil pointer", "error calling", "wrong type for value", "YAML parse error", "Traceback")


def tools_view(text, kind):
    """The spec as the tool reads it, or None if it refuses."""
    try:
        loaded = load_text(text)
        load_cluster(loaded.chart.get("cluster", {}), loaded.spec)
    except SpecError:
        return None
    return loaded.spec if loaded.spec.kind == kind else None


def overrides(spec):
    """verl's overrides of a run that has the release's name."""
    return [] if isinstance(spec, ConvertSpec) else compute_overrides(spec, run=FACTS)


def cases():
    """The mutated specs, the same ones at every run."""
    found = []

    def collect(label, num_examples):
        @settings(max_examples=num_examples, derandomize=True, database=None, deadline=None, phases=[Phase.generate])
        @given(mutated(label))
        def add(case):
            found.append(case)

        add()

    collect("", NUM_VALID)
    for label in ERRORS:
        collect(label, NUM_PER_ERROR)
    return found


def outcome(case, file):
    """The class of a case's outcome, "valid" or an error's; asserts that helm and the tool agree on it."""
    label, chart, tree = case
    file.write_text(yaml.safe_dump(tree, allow_unicode=True))
    spec = tools_view(file.read_text(), chart)
    done = helm("template", RUN, str(CHARTS / chart), "-f", str(file), "--show-only", "templates/configmap.yaml")
    accepted = done.returncode == 0
    assert accepted == (spec is not None and label not in CHARTS_ONLY), f"{case}: {done.stderr or 'rendered'}"
    if not accepted:
        assert any(mark in done.stderr for mark in CLEAR), f"{case}: {done.stderr}"
        assert not any(mark in done.stderr for mark in TRACES), f"{case}: {done.stderr}"
        return label or "rule (by chance)"
    mounted = load_text(one(parsed(done.stdout), "ConfigMap")["data"]["exp.json"], is_json=True).spec
    assert mounted == spec.model_copy(update={"name": RUN}), case
    assert overrides(mounted) == overrides(spec), case
    return "valid"


@pytest.mark.slow
def test_helm_and_the_tool_agree_on_500_mutated_specs(tmp_path):
    mutants = cases()
    files = [tmp_path / f"{number}.yaml" for number in range(len(mutants))]
    with ThreadPoolExecutor(2) as pool:
        seen = collections.Counter(pool.map(outcome, mutants, files))
    assert seen.total() == 500
    assert seen["valid"] >= 200
    assert {label: seen[label] for label in ERRORS if seen[label] < 10} == {}


@pytest.mark.parametrize("label", sorted(set(ERRORS) - CHARTS_ONLY))
def test_the_launcher_ends_with_exit_2_and_one_message_for_each_class_of_error(label, tmp_path, capsys):
    kinds, edits = ERRORS[label]
    for number, edits_of_one in enumerate(edits):
        if any(path.startswith("cluster.") for path in edits_of_one):
            continue  # the trainer does not read the charts' part
        tree = copy.deepcopy(TREES[EXAMPLE_OF["opd" if "opd" in kinds else kinds[0]]])
        for path, value in edits_of_one.items():
            edit(tree, path, value)
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(tree))
        assert launch.main([str(file), "--no-env", "--dry-run"]) == launch.EXIT_BAD_SPEC
        out = capsys.readouterr()
        assert out.out == ""
        assert out.err.count(f"{file}: ") == 1
        assert "rule: " in out.err
        assert not any(mark in out.err for mark in TRACES)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "convert"])
def test_a_run_in_a_ray_cluster_differs_from_a_local_one_by_what_ray_init_would_refuse_only(name):
    spec = load_text(EXPERIMENTS[name].read_text()).spec
    local = set(compute_overrides(spec, run=FACTS))
    in_cluster = set(compute_overrides(spec, run=dataclasses.replace(FACTS, in_ray_cluster=True)))
    assert in_cluster < local
    keys = {line.lstrip("+").partition("=")[0] for line in local - in_cluster}
    assert keys <= {
        f"ray_kwargs.ray_init.{key}" for key in ("include_dashboard", "num_cpus", "num_gpus", "object_store_memory")
    }
