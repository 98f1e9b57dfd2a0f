"""The command line: a bad spec ends with exit 2 before anything is started, `--dry-run` prints what would be run."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.forks import DRY_RUN, run_forked

from opd.data.toy import STUDENT_DIR
from opd.experiment import VARIABLES, SpecError, load_spec, parse_tree
from opd.experiment.run_config import RunFacts
from opd.experiment.verl import compute_overrides
from opd.inputs.models import fetch_model
from opd.launch import check_machine, main

EXAMPLES = Path(__file__).parents[2] / "manifests" / "experiments"
OPD = EXAMPLES / "opd-qwen3-8b-to-1.7b.yaml"
HEAVY = ("torch", "verl", "ray", "transformers", "hydra")
# A plan and a dry run need no more than the tool's own packages.
ABSENT = (*HEAVY, "huggingface_hub", "tensordict", "tokenizers")
LIGHT = f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); from opd.launch import main; sys.exit(main())"
CLEAN = {k: v for k, v in os.environ.items() if k not in {"RAY_ADDRESS", *(variable.name for variable in VARIABLES)}}


def launch(*args, env=None, code="import sys; from opd.launch import main; sys.exit(main())"):
    return run_forked(DRY_RUN, "-c", code, *args, cwd=Path.cwd(), env=CLEAN | (env or {}))


@pytest.mark.parametrize("path", [OPD, EXAMPLES / "convert.yaml"], ids=lambda path: path.stem)
def test_a_dry_run_prints_the_overrides_one_a_line_and_nothing_else(path):
    done = launch(path, "--dry-run", code=LIGHT)
    assert done.returncode == 0
    spec = load_spec(path).spec
    if spec.kind == "convert":
        assert done.stdout == ""
    else:
        facts = RunFacts(run_id=spec.name, run_dir=f"outputs/{spec.name}")
        assert done.stdout.splitlines() == compute_overrides(spec, run=facts)


@pytest.mark.parametrize(
    ("sets", "variables", "ranks"),
    [
        ((), {"CUDA_VISIBLE_DEVICES": "0,3"}, 2),
        (("--set", "trainer.gpus_per_node=4"), {"CUDA_VISIBLE_DEVICES": "0,3"}, 4),
        ((), {"CUDA_VISIBLE_DEVICES": ""}, 8),
        ((), {"CUDA_VISIBLE_DEVICES": "0", "RAY_ADDRESS": "auto"}, 8),
    ],
)
def test_a_run_on_this_machine_has_a_rank_for_each_gpu(tmp_path, sets, variables, ranks):
    (tmp_path / "exp.yaml").write_text("kind: opd\nmodel: m\nteacher: t\n")
    done = launch(tmp_path / "exp.yaml", "--dry-run", *sets, env=variables)
    assert f"trainer.n_gpus_per_node={ranks}" in done.stdout.splitlines()


def test_name_seed_set_and_hydra_overrides_reach_the_run():
    done = launch(OPD, "--dry-run", "--name", "other", "--seed", "7", "--set", "data.train_batch_size=512", "--",
                  "data.train_batch_size=1024", "+algorithm.extra=1")  # fmt: skip
    lines = done.stdout.splitlines()
    assert {
        "trainer.experiment_name=other",
        "actor_rollout_ref.rollout.seed=7",
        "data.train_batch_size=1024",
        "trainer.default_local_dir=outputs/other/checkpoints",
    } <= {*lines}
    assert lines[-1] == "+algorithm.extra=1"


@pytest.fixture
def hub(monkeypatch):
    """A hub whose repositories hold the files of the list."""
    import huggingface_hub

    names = ["config.json", "tokenizer.json", "model.safetensors", "original/consolidated.00.pth"]
    info = SimpleNamespace(sha="abc", siblings=[SimpleNamespace(rfilename=name) for name in names])
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda self, path, revision, timeout: info)
    fetched = {}
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda path, **more: fetched.update(more) or f"/cache/{path}"
    )
    return info.siblings, fetched


def test_a_pinned_revision_is_fetched_before_the_run_without_copies_of_its_weights(hub):
    assert fetch_model("model.path", "Qwen/Qwen3-8B", "main") == "/cache/Qwen/Qwen3-8B"
    assert hub[1] == {"revision": "abc", "allow_patterns": ["config.json", "model.safetensors", "tokenizer.json"]}
    assert fetch_model("model.path", "Qwen/Qwen3-8B", None) is None


def test_a_repository_without_weights_is_refused_before_anything_is_fetched(hub):
    del hub[0][2]
    with pytest.raises(SpecError, match="no weights that transformers loads"):
        fetch_model("teacher.path", "me/adapters", "main")
    with pytest.raises(SpecError, match="no weights that transformers loads"):
        fetch_model("teacher.path", "me/adapters", None)
    assert hub[1] == {}


@pytest.mark.parametrize(
    ("num", "keys", "fix"),
    [(0, {"device": "cuda"}, "set device: cpu, and remove trainer.gpus_per_node"), (1, {"trainer.gpus_per_node": 8}, "gpus_per_node: 1"),
     (8, {"teacher.serve.gpus": 1}, "start a server yourself")],
)  # fmt: skip
def test_a_machine_with_too_few_gpus_or_no_chart_is_named_with_the_keys_that_mend_it(monkeypatch, num, keys, fix):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("opd.launch.count_gpus", lambda: num)
    tree = {"kind": "opd", "model": "m", "teacher": "t"}
    sets = [f"{key}={value}" for key, value in keys.items()]
    with pytest.raises(SpecError) as caught:
        check_machine(parse_tree(tree, sets=sets, count_gpus=lambda: num).spec)
    assert fix in caught.value.problems[0].fix
    check_machine(parse_tree(tree, count_gpus=lambda: num).spec)  # by default a run follows its machine


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """Return the exit code of `--check` of a toy experiment with these keys, and what it says."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path, whole = tmp_path / "exp.yaml", {"model": "toy://student", "teacher": "toy://teacher"}

    def run(*sets, num_gpus=0, **keys):
        monkeypatch.setattr("opd.launch.count_gpus", lambda: num_gpus)
        short = {"train": ["toy://train"], "val": ["toy://heldout"], "max_prompt_length": 32, "max_response_length": 8}
        tree = {"kind": "opd", **whole, **keys, "data": short | keys.pop("data", {})}
        path.write_text(json.dumps({key: value for key, value in tree.items() if value is not None}))
        code = main([str(path), "--check", *(word for one in sets for word in ("--set", one))])
        return code, "".join(capsys.readouterr())

    return run


@pytest.mark.parametrize(("num", "code", "words"), [(1, 0, "can be used"), (0, 2, "over the 8 data-parallel ranks")])
def test_a_check_counts_the_gpus_of_this_machine_as_the_run_does(num, code, words, checked):
    found, said = checked(num_gpus=num, data={"train_batch_size": 3})
    assert (found, words in said) == (code, True)


def test_a_check_asks_scorer_and_chat_template_and_counts_prompts_as_the_start_does(tmp_path, checked):
    model, rows, scorer = tmp_path / "model", tmp_path / "a.jsonl", tmp_path / "mine.py"
    shutil.copytree(STUDENT_DIR, model)
    rows.write_text('{"prompt": "12+34=1+1+1=", "answer": "5"}\n{"prompt": "1+1=", "answer": "2"}\n')
    data = {"train": [str(rows)], "train_batch_size": 2, "max_prompt_length": 12}
    keys = {"kind": "grpo", "model": str(model), "teacher": None, "device": "cpu", "data": data}
    assert checked(**keys)[0] == 0
    code, said = checked("data.max_prompt_length=11", **keys)
    assert code == 2
    assert f"no prompt of {rows} fits data.max_prompt_length=11 tokens; the shortest has 12" in said
    scorer.write_text("")
    code, said = checked(f"reward.path={scorer}", **keys)
    assert code == 2
    assert '  reward.function\n    value: "custom"\n    rule:  /' in said
    assert "has no attribute 'compute_score'" in said
    (model / "chat_template.jinja").write_text("{{ messages[0].content + messages }}")
    code, said = checked(**keys)
    assert code == 2
    assert "its chat template cannot be used: it fails: TypeError" in said


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"loss_type": "skew_kl", "loss_params": {"skw": 1}}, """  opd.loss_params
    value: {"skw": 1}
    rule:  divergence skew_kl has no parameter 'skw'
    fix:   use one of top_k, skew"""),
        ({"loss_type": "skew_kl", "stages": [{"until": 1, "loss_type": "akl", "loss_params": {"mu": 2}}, {}]},
         "opd.stages.0.loss_params"),
        ({"loss_type": "topk_reverse_kl", "top_k": 8, "stages": [{"until": 1, "loss_type": "jsd", "beta": 0.5}, {}]}, ""),
        ({"loss_type": "my_losses:gone"}, "No module named 'my_losses'\n    fix:   put the module's folder"),
        ({"loss_type": "my_broken:loss"}, "SyntaxError: "),
        ({"importance": {"tokens": {"score": "json:gone"}}}, "has no attribute 'gone'"),
        ({"importance": {"problems": {"weights": "json:gone", "pass_rates": __file__}}}, "has no attribute 'gone'"),
    ],
)  # fmt: skip
def test_a_check_asks_the_parts_of_a_loss_as_the_first_update_does(keys, words, tmp_path, monkeypatch, checked):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_broken.py").write_text("def loss(")
    code, said = checked(num_gpus=1, opd=keys)
    assert code == (2 if words else 0)
    assert words in said


def test_a_check_names_the_teacher_whose_tokens_are_others(tmp_path, checked):
    other = tmp_path / "b"
    shutil.copytree(STUDENT_DIR, other)
    tokenizer = other / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"<tools>"', '"<others>"'))
    several = {
        "teacher": None,
        "teachers": {"a": str(STUDENT_DIR), "b": str(other)},
        "route": {"to": {"x": "a", "y": "b"}},
    }
    code, said = checked(model=str(STUDENT_DIR), device="cpu", **several)
    assert code == 2
    assert "teachers.b.path\n    value: " in said, said
    assert "have different tokenizers" in said


SHAPE = {
    "model_type": "qwen3", "vocab_size": 151936, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "num_hidden_layers": 36, "tie_word_embeddings": False,
}  # fmt: skip


def test_a_plan_is_a_table_by_phase_and_what_cannot_fit_is_refused_with_the_knob_that_helps(tmp_path):
    for name, hidden, intermediate in (("student", 1536, 6144), ("teacher", 4096, 12288)):
        (tmp_path / name).mkdir()
        config = SHAPE | {"hidden_size": hidden, "intermediate_size": intermediate}
        (tmp_path / name / "config.json").write_text(json.dumps(config))

    def plan(student, gib, share):
        sets = {"model.path": student, "teacher.path": tmp_path / "teacher", "trainer.gpus_per_node": 1,
                "opd.gpu_memory_gib": gib, "rollout.gpu_memory_utilization": share}  # fmt: skip
        return launch(OPD, "--plan", *(part for item in sets.items() for part in ("--set", "=".join(map(str, item)))), code=LIGHT)  # fmt: skip

    fits = plan(tmp_path / "student", 139.8, 0.5)
    assert (fits.returncode, fits.stderr) == (0, "")
    assert "optimizer step" in fits.stdout.splitlines()[0]
    refused = plan(tmp_path / "student", 79.1, 0.99)
    assert refused.returncode == 2
    assert "does not fit into 79.10 GiB" in refused.stdout
    assert "helps: a smaller rollout.gpu_memory_utilization" in refused.stdout
    of_the_hub = plan("Qwen/Qwen3-1.7B", 139.8, 0.5)
    assert of_the_hub.returncode == 2
    assert "Qwen/Qwen3-1.7B: its config.json cannot be read (ModuleNotFoundError" in of_the_hub.stderr
    assert "Traceback" not in of_the_hub.stderr


def test_a_start_without_the_trainer_s_packages_names_the_extra():
    ended = launch(OPD, code=LIGHT)
    assert ended.returncode == 2
    assert "pip install 'opd[train]' in Python 3.11 to 3.13" in ended.stderr
