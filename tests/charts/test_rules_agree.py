"""Helm and the tool agree: each rule of the tables is refused by both in the same words, and 200 mutated files are refused by
both or give the trainer the same run."""

import ast
import collections
import copy
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import yaml
from hypothesis import Phase, given, settings
from tests.charts.helm import CHARTS, EXAMPLE_OF, EXPERIMENTS, IMAGE, RUN, helm, kind_of, one, parsed
from tests.charts.mutations import ERRORS, TREES, edit, mutated
from tests.config.broken_rules import RULES as RULES_OF_THE_SPEC
from tests.minimal import MINIMAL

from chartgen.chart import charts
from opd import launch
from opd.config import ConvertSpec, RunSpec, SpecError, load_text
from opd.config.cluster import parse_cluster
from opd.config.cluster.rules import RULES as CLUSTER_RULES
from opd.config.cluster.rules import load_cluster, names
from opd.config.defaults import fill_defaults
from opd.config.expressions import FUNCTIONS, parse, parse_message
from opd.config.kinds import SPEC_CLASSES
from opd.config.rule import broken, with_named
from opd.config.rules import RULES
from opd.config.rules.store import STORE
from opd.config.rules.terms import SIZES
from opd.config.run_config import RunFacts
from opd.config.verl import compute_overrides

# 200 together: hypothesis is asked for each class by itself, since it does not spread evenly over choices.
NUM_VALID, NUM_PER_ERROR = 60, 10
FACTS = RunFacts(run_id=RUN, run_dir=f"outputs/{RUN}")
# Only the charts see these: the tool learns of them by rendering.
CHARTS_ONLY = {"rule (chart)"}
CLEAR = ("  rule:  ", "values don't meet the specifications of the schema")
TRACES = ("panic", "nil pointer", "error calling", "wrong type for value", "YAML parse error", "Traceback")


def tools_view(text, kind):
    """The spec as the tool reads it, or None, and the tool's problems."""
    try:
        loaded = load_text(text)
        load_cluster(loaded.chart.get("cluster", {}), loaded.spec)
    except SpecError as error:
        return None, error.problems
    return loaded.spec if loaded.spec.kind == kind else None, ()


def in_the_same_words(message, problems):
    """Whether helm's message is one of the tool's problems, line for line (maps and lists are spaced differently)."""
    return any(all(f"  {line}\n" in f"{message}\n" for line in lines_of(problem)) for problem in problems)


def lines_of(problem):
    value = problem.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # as helm has it
    return replace(problem, source="", value=None if isinstance(value, dict | list) else value).lines()


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
    spec, problems = tools_view(file.read_text(), chart)
    done = helm("template", RUN, str(CHARTS / chart), "-f", str(file), "--show-only", "templates/configmap.yaml")
    accepted = done.returncode == 0
    assert accepted == (spec is not None and label not in CHARTS_ONLY), f"{case}: {done.stderr or 'rendered'}"
    if not accepted:
        assert any(mark in done.stderr for mark in CLEAR), f"{case}: {done.stderr}"
        assert not any(mark in done.stderr for mark in TRACES), f"{case}: {done.stderr}"
        if label.startswith("rule") and label not in CHARTS_ONLY and "schema" not in done.stderr:
            assert in_the_same_words(done.stderr, problems), f"{case}: {done.stderr}"
        return label or "rule (by chance)"
    mounted = load_text(one(parsed(done.stdout), "ConfigMap")["data"]["exp.json"], is_json=True).spec
    assert mounted == spec.model_copy(update={"name": RUN}), case
    assert overrides(mounted) == overrides(spec), case
    return "valid"


ALL_RULES = (*STORE, *CLUSTER_RULES, *RULES)
EPHEMERAL = {"cluster.checkpoints.ephemeral": True}
TOOLS = "cluster.toolDatabase"
# Edits of the least that a kind needs; each breaks one rule or more, and together they break every rule.
BROKEN = [
    *((kind, edits) for kind, edits, *_ in RULES_OF_THE_SPEC),
    ("grpo", {"actor.param_offload": "auto"}),
    # No rollouts, so no samples a prompt: 64 rows over 5 ranks, and 8 rows of a rank by 3.
    ("sft", {"trainer.gpus_per_node": 5}),
    ("sft", {"actor.ppo_micro_batch_size_per_gpu": 3}),
    ("opd", {"actor.ppo_micro_batch_size_per_gpu": 3, "model.attn_implementation": "sdpa"}),
    ("opd", {"actor.log_prob_micro_batch_size_per_gpu": 5, "model.attn_implementation": "sdpa"}),
    ("grpo", {"actor.log_prob_micro_batch_size_per_gpu": 5, "actor.use_dynamic_bsz": False}),
    ("convert", {"cluster.image.ref": None}),
    ("convert", {"cluster.image.ref": "x:latest"}),
    ("opd", {"cluster.submitter.image": "x:latest"}),
    ("convert", {"cluster.cleanUp.succeeded.selfSeconds": 119}),
    ("opd", {"cluster.cleanUp.failed.workersSeconds": 601}),
    ("convert", {"cluster.deadlines.activeSeconds": 900}),
    ("opd", {"cluster.deadlines.preRunningSeconds": 600}),
    ("convert", {"cluster.deadlines": {"activeSeconds": 1_000_000, "preRunningSeconds": 999_700}}),
    ("opd", {"cluster.queue": {"manager": "kueue", "name": "q"}}),
    ("opd", {"cluster.queue": {"manager": "volcano", "name": "q"}, "cluster.submissionMode": "HTTPMode"}),
    ("opd", {"cluster.serviceAccount": {"name": "trainer", "annotations": {"a": "b"}}}),
    ("opd", {"cluster.networkPolicy.enabled": False}),
    ("opd", {"cluster.networkPolicy": {"enabled": False, "acceptOpenNetwork": True}, "cluster.auth.token": False}),
    ("opd", {"cluster.extraEnv": [{"name": "A", "value": "1"}, {"name": "B"}]}),
    ("opd", {**EPHEMERAL, "cluster.checkpoints.claim": "c", "store.url": "s3://b/x"}),
    ("convert", {**EPHEMERAL, "store.url": "file:///x"}),
    ("convert", {"cluster.head.labels": {"app.kubernetes.io/name": "x"}}),
    ("opd", {"cluster.worker.labels": {"app.kubernetes.io/created-by": "x"}}),
    ("opd", {"cluster.submitter.labels": {"app.kubernetes.io/name": "x"}}),
    ("convert", {"cluster.head.objectStoreGib": 2.5}),
    ("opd", {"cluster.worker.objectStoreGib": 17}),
    ("opd", {"cluster.worker.requests": {"nvidia.com/gpu": 8}}),
    ("opd", {"cluster.worker.limits": {"nvidia.com/gpu": 8}}),
    ("opd", {"cluster.rdma.ipcLock": True}),
    ("convert", {"cluster.head": {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}}),
    ("opd", {"cluster.worker": {"requests": {"memory": "301Gi"}, "limits": {"memory": "300Gi"}}}),
    ("opd", {"cluster.submitter.requests": {"memory": "2Gi"}}),
    ("opd", {"cluster.worker.requests": {"cpu": 26}}),
    ("opd", {"cluster.worker.limits": {"cpu": "25500m"}}),
    ("convert", {"cluster.head": {"shmGib": 17, "limits": {"memory": "16Gi"}}}),
    ("opd", {"cluster.worker": {"shmGib": 300.5, "limits": {"memory": "300Gi"}}}),
    ("convert", {"cluster.head.limits": {"memory": "3Gi"}}),
    ("opd", {"cluster.worker.limits": {"memory": "20Gi"}}),
    ("opd", {"trainer.nnodes": 2, "cluster.checkpoints.accessMode": "ReadWriteOnce"}),
    ("opd-agent", {"agent.database_dir": "/d", TOOLS: {"claim": "c", "url": "https://x/d.tar", "sha256": "0" * 64}}),
    ("opd-agent", {"agent.database_dir": "/d", TOOLS: {"url": "https://x/d.tar"}}),
    ("opd-agent", {TOOLS: {"claim": "c"}}),
    ("opd", {TOOLS: {"claim": "c"}}),
    ("opd", {"data.split.of": 3}),
    ("sft", {"data.split.seed": 7}),
    ("convert", {"store.url": "S3://bucket/x"}),
]  # fmt: skip


def broken_file(kind, edits):
    """The least file of a kind with an image, edited."""
    tree = copy.deepcopy({**MINIMAL[kind], **IMAGE})
    for path, value in edits.items():
        edit(tree, path, value)
    return tree


def facts(tree):
    """What the rules see of a file whose keys are valid one by one."""
    tree = copy.deepcopy(tree)
    chart, kind = tree.pop("cluster"), tree["kind"]
    fill_defaults(kind, SPEC_CLASSES[kind], tree)
    spec = SPEC_CLASSES[kind].model_validate_json(json.dumps(tree))
    found = names(parse_cluster(chart, kind), spec)
    return with_named(found, SIZES) if isinstance(spec, RunSpec) else found


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "edits"), BROKEN, ids=str)
def test_a_broken_rule_is_refused_by_helm_in_the_words_of_the_tool(kind, edits, tmp_path):
    tree = broken_file(kind, edits)
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(tree))
    done = helm("template", RUN, str(CHARTS / kind), "-f", str(tmp_path / "exp.yaml"))
    assert done.returncode != 0
    assert in_the_same_words(done.stderr, broken(ALL_RULES, facts(tree))), done.stderr


def test_those_files_break_every_rule():
    seen = [facts(broken_file(*case)) for case in BROKEN]
    assert [rule.key for rule in ALL_RULES if not any(any(broken([rule], tree)) for tree in seen)] == []


def test_a_rule_reads_keys_that_its_kinds_have():
    schemas = {chart.kind: chart.schema for chart in charts()}
    beside = {*SIZES, "pods", "index", "item"}
    for rule in ALL_RULES:
        read = {path for path in paths(rule) if path.partition(".")[0] not in beside}
        assert [path for path in read if not any(has_key(schemas[kind], path) for kind in rule.kinds)] == [], rule.key


def has_key(schema, path):
    for name in path.split("."):
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return True


def paths(rule):
    """Every dotted key that a rule reads."""
    texts = [parse(text) for text in (rule.when, rule.value, rule.each) if text is not None]
    return {path for node in (*texts, *map(parse_message, (rule.key, rule.rule, rule.fix))) for path in paths_in(node)}


def paths_in(node):
    if isinstance(node, ast.Attribute | ast.Name):
        return {ast.unparse(node)} - FUNCTIONS.keys()
    return {path for child in ast.iter_child_nodes(node) for path in paths_in(child)}


@pytest.mark.slow
def test_helm_and_the_tool_agree_on_200_mutated_specs(tmp_path):
    mutants = cases()
    files = [tmp_path / f"{number}.yaml" for number in range(len(mutants))]
    with ThreadPoolExecutor(2) as pool:
        seen = collections.Counter(pool.map(outcome, mutants, files))
    assert seen.total() == 200
    assert seen["valid"] >= 50
    assert {label: seen[label] for label in ERRORS if seen[label] < 5} == {}


# The trainer does not read the charts' part.
FOR_THE_TRAINER = {
    label: (kinds, [edits for edits in every if not any(path.startswith("cluster.") for path in edits)])
    for label, (kinds, every) in ERRORS.items()
}


@pytest.mark.parametrize("label", sorted(label for label, (_, edits) in FOR_THE_TRAINER.items() if edits))
def test_the_launcher_ends_with_exit_2_and_one_message_for_each_class_of_error(label, tmp_path, capsys):
    kinds, edits = FOR_THE_TRAINER[label]
    for number, edits_of_one in enumerate(edits):
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


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if kind_of(name) not in ("convert", "pipeline")])
def test_a_run_in_a_ray_cluster_differs_from_a_local_one_by_what_ray_init_would_refuse_only(name):
    spec = load_text(EXPERIMENTS[name].read_text()).spec
    local = set(compute_overrides(spec, run=FACTS))
    in_cluster = set(compute_overrides(spec, run=dataclasses.replace(FACTS, in_ray_cluster=True)))
    assert in_cluster < local
    keys = {line.lstrip("+").partition("=")[0] for line in local - in_cluster}
    assert keys <= {
        f"ray_kwargs.ray_init.{key}" for key in ("include_dashboard", "num_cpus", "num_gpus", "object_store_memory")
    }
