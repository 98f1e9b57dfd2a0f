"""An error names path, value, rule, source and the nearest valid key, in one readable block."""

import pickle

import pytest

from opd.experiment import SpecError, load_spec, load_text

HEAD = "kind: opd\nmodel: {path: m}\nteacher: {path: t}\n"


def error_of(text, **kwargs):
    with pytest.raises(SpecError) as caught:
        load_text(text, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    ("text", "path", "suggestion"),
    [
        ("data: {train_batchsize: 8}", "data.train_batchsize", "data.train_batch_size"),
        ("learning_rate: 1e-5", "learning_rate", "actor.learning_rate"),
        ("actor: {lr: 1e-5}", "actor.lr", "actor.learning_rate"),
        ('rollout: {"n": 8}', "rollout.n", "rollout.num_samples"),
        ("rollout: {val: {temprature: 1}}", "rollout.val.temprature", "rollout.val.temperature"),
        ("trainer: {loggers: [wandbb]}", "trainer.loggers.0", "wandb"),
        ("grpo: {kl_loss_coef: 0}", "grpo", "opd"),
    ],
)
def test_an_unknown_key_or_word_gets_the_nearest_valid_one(text, path, suggestion):
    (problem,) = error_of(HEAD + text).problems
    assert problem.path == path
    assert suggestion in problem.fix
    assert problem.source == "line 4"


def test_an_error_of_another_process_arrives_as_it_was():
    error = error_of(HEAD + "optd: {}")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problems, copy.origin, str(copy)) == (error.problems, error.origin, str(error))


@pytest.mark.parametrize("kind", ["odp", "{}", "[opd]"])
def test_an_unknown_kind_gets_the_list_and_the_nearest(kind):
    (problem,) = error_of(f"kind: {kind}\n").problems
    assert "opd-agent" in problem.rule
    assert problem.fix == "write `kind: opd`"


def test_defaults_that_cannot_be_computed_are_not_reported_beside_their_cause():
    error = error_of(HEAD + "data: {max_prompt_length: long}\n")
    assert [p.path for p in error.problems] == ["data.max_prompt_length"]


def test_a_set_value_is_read_by_the_type_of_its_key():
    sets = ["model.path=123", "data.val=[a, b]", "rollout.val.temperature=0", "rollout.engine_kwargs={x: 1}", "name=on"]
    spec = load_text(HEAD, sets=sets).spec
    assert (spec.model.path, spec.data.val, spec.rollout.val.temperature) == ("123", ("a", "b"), 0)
    assert (spec.rollout.engine_kwargs, spec.name) == ({"x": 1}, "on")


@pytest.mark.parametrize(("make", "words"), [("missing", "no such file"), ("folder", "is a directory"), ("binary", "UTF-8"),
                                             ("empty", "found nothing")])  # fmt: skip
def test_a_file_that_cannot_be_read_says_why(make, words, tmp_path):
    path = tmp_path / "exp.yaml"
    if make == "folder":
        path.mkdir()
    elif make == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif make == "empty":
        path.write_text("")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("kwargs", [{"env": {"MODEL_PATH": "a\udc80"}}, {"sets": ["model.path=a\udc80"]}])
def test_stray_bytes_are_refused(kwargs):
    assert "Unicode" in str(error_of(HEAD, **kwargs))
