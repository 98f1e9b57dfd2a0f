"""Fixes of single fields, made from the value and from the type of the error."""

import pytest

from opd.experiment import SpecError, load_spec, load_text
from opd.experiment.cluster import load_cluster

HEAD = "kind: opd\nmodel: {path: m}\nteacher: {path: t}\n"


def of_file(text, **more):
    with pytest.raises(SpecError) as caught:
        load_text(text, **more)
    (problem,) = caught.value.problems
    return problem


def of_cluster(tree):
    with pytest.raises(SpecError) as caught:
        load_cluster(tree, load_text(HEAD).spec)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("line", "path", "fix"),
    [
        ("device: gpu", "device", "did you mean cuda?"),
        ("opd: {loss_type: 3}", "opd.loss_type", 'quote it: "3"'),
        ('trainer: {val_before_train: "yes"}', "trainer.val_before_train", "write true, without quotes"),
        ("trainer: {val_before_train: 1}", "trainer.val_before_train", "write true or false"),
        ("trainer: {total_steps: 0}", "trainer.total_steps", "write a number >= 1"),
        ("seed: '3'", "seed", "write 3, without quotes"),
        ("actor: {learning_rate: fast}", "actor.learning_rate", "write a number"),
        ("data: {train: [3]}", "data.train.0", 'quote it: "3"'),
        ("trainer: {loggers: 'console, wandb'}", "trainer.loggers", "write `loggers: [console, wandb]`"),
        ("name: My_Run", "name", "did you mean my-run?"),
        ("name: ''", "name", "write a value, or leave the key out"),
        ("store: {url: s3://b, endpoint: 'minio:9000'}", "store.endpoint", "did you mean http://minio:9000?"),
        ("store: s3://b", "store", "write `store: {url: s3://b}`"),
        ("output: 5", "output", "set its keys one by one: output.root"),
        ("actor: {param_offload: maybe}", "actor.param_offload", "write true or false, or 'auto'"),
    ],
)  # fmt: skip
def test_a_value_of_the_spec_is_answered_by_what_to_write_instead(line, path, fix):
    problem = of_file(HEAD + line)
    assert (problem.path, problem.fix) == (path, fix)


@pytest.mark.parametrize(
    ("tree", "path", "fix"),
    [
        ({"worker": {"requests": {"memory": "900GB"}}}, "worker.requests.memory", "did you mean 900G?"),
        ({"worker": {"requests": "8"}}, "worker.requests", "write a map, {KEY: VALUE}"),
        ({"secrets": {"huggingFace": "hf-token"}}, "secrets.huggingFace",
         "write `huggingFace: {secret: hf-token}`"),
        ({"image": {"pullSecrets": "registry"}}, "image.pullSecrets", "write `pullSecrets: [registry]`"),
        ({"mounts": [{"claim": "a", "path": "data"}]}, "mounts.0.path", "did you mean /data?"),
        ({"checkpoints": {"size": "much"}}, "checkpoints.size", 'write one like "500Gi"'),
        ({"head": "x"}, "head", "set its keys one by one: cluster.head.requests, "),
    ],
)  # fmt: skip
def test_a_value_of_the_cluster_part_is_answered_in_the_same_way(tree, path, fix):
    problem = of_cluster(tree)
    assert problem.path == f"cluster.{path}"
    assert problem.fix.startswith(fix)


def test_a_pattern_is_told_in_words_and_a_key_by_its_description():
    problem = of_cluster({"worker": {"requests": {"memory": "900GB"}}})
    assert "a quantity of Kubernetes" in problem.rule
    assert "^" not in problem.rule
    assert of_cluster({"lifecycle": "x"}).about.startswith("rules: staged clean-up")


@pytest.mark.parametrize(
    ("text", "rule", "fix"),
    [
        ("name=", "--set takes spec.path=value", "--set actor.learning_rate=1e-6"),
        ("nonsense", "--set takes spec.path=value", "--set actor.learning_rate=1e-6"),
        ("data=8", "it is a section of keys", "set its keys one by one: data.dir,"),
        ("data.train_batchsize=8", "there is no such key in kind opd", "did you mean data.train_batch_size?"),
        ("cluster.gpu.type=NVIDIA-H200", "a run reads no `matrix`", "remove the key"),
    ],
)
def test_a_bad_set_names_itself_and_its_fix(text, rule, fix):
    problem = of_file(HEAD, sets=[text])
    assert problem.path == text.partition("=")[0]
    assert problem.source == f"--set {problem.path}"
    assert problem.rule.startswith(rule)
    assert problem.fix.startswith(fix)


def test_a_site_file_that_is_not_there_is_told_by_what_names_it(tmp_path):
    (tmp_path / "exp.yaml").write_text(HEAD)
    with pytest.raises(SpecError, match="no such file") as caught:
        load_spec(tmp_path / "exp.yaml", site=tmp_path / "site.yaml")
    assert "by --site or $OPDCTL_SITE" in caught.value.problems[0].fix


def test_null_in_the_experiment_unsets_a_key_of_the_site_file(tmp_path):
    (tmp_path / "exp.yaml").write_text(HEAD + "store: {url: 's3://b', endpoint: null}\n")
    (tmp_path / "site.yaml").write_text("store: {url: out, endpoint: 'http://minio'}\n")
    store = load_spec(tmp_path / "exp.yaml", site=tmp_path / "site.yaml").spec.store
    assert (store.url, store.endpoint) == ("s3://b", None)
