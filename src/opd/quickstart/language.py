"""The language model of `make quickstart-lm`: SmolLM2 and word problems, measured by plain transformers."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from opd.evaluation.estimators import Estimate, clustered
from opd.quickstart.report import Report, share

SPEC, OUT = "quickstart-lm.yaml", "build/quickstart-lm"
MODEL, DATA = Path("build/lm/model"), Path("build/lm/data")
ADAPTER = Path(__file__).parent / "gsm_teacher"
"""The teacher's LoRA adapters; manifests/experiments/smollm2-gsm-teacher.yaml made them."""
SOURCES = {"gsm_seen": "val_seen.parquet", "gsm_new": "val_new.parquet"}
NUM_PROBLEMS = 16
"""Held-out problems of each source."""
MAX_NEW_TOKENS = 160
NUM_SAMPLES = 3
MAX_SHOWN = 300
"""Characters of a sample."""


class Problem(NamedTuple):
    """A held-out problem."""

    messages: list[dict[str, str]]
    truth: str
    source: str


class Answer(NamedTuple):
    """A greedy answer with the prompt's tokens."""

    prompt: list[int]
    tokens: list[int]
    text: str


def prepare(out: Path) -> list[str]:
    """Make the model, the data and the teacher where they are missing; return the settings that name them."""
    teacher = out / "teacher"
    steps = [
        (MODEL, ["opd.data.fetch_smollm2", "--out", str(MODEL)]),
        (DATA, ["opd.data.prepare_gsm_symbolic", "--out", str(DATA)]),
        (teacher, ["opd.quickstart.adapter", str(MODEL), str(ADAPTER), str(teacher)]),
    ]
    for folder, command in steps:
        if not folder.exists():
            subprocess.run([sys.executable, "-m", *command], check=True)
    return [f"teacher.path={teacher}"]


def measure(run_dir: Path, out: Path, rows: Sequence[Mapping[str, Any]], seed: int) -> Report:
    """Measure accuracy and divergence on held-out problems, before and after, and the teacher's accuracy."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    problems = read_problems()
    folders = {"student before": MODEL, "student after": out / "model", "teacher": out / "teacher"}
    models = {label: AutoModelForCausalLM.from_pretrained(path, dtype="float32") for label, path in folders.items()}
    answers = {label: greedy_answers(model, tokenizer, problems) for label, model in models.items()}
    columns: dict[str, dict[str, Estimate]] = {}
    for source in SOURCES:
        columns[source] = {label: accuracy(problems, found, source) for label, found in answers.items()}
    students = ("student before", "student after")
    columns["divergence"] = {
        label: clustered(divergences(models[label], models["teacher"], answers[label])) for label in students
    }
    right = {label: accuracy(problems, found).value for label, found in answers.items()}
    before, after = (columns["divergence"][label].value for label in students)
    return Report(
        columns=columns,
        facts={title: {label: one._asdict() for label, one in found.items()} for title, found in columns.items()},
        heldout=[(0, right["student before"]), (int(rows[-1]["step"]), right["student after"])],
        teacher=right["teacher"],
        title=f"On-policy distillation of SmolLM2-135M, seed {seed}: divergence {before:.3f} to {after:.3f} held-out",
        notes=[
            f"greedy answers to {NUM_PROBLEMS} held-out problems of seen templates and {NUM_PROBLEMS} of new ones",
            "divergence: reverse KL from the teacher on the student's own answers, nats a token, mean over answers",
            *samples(problems, answers["student before"], answers["student after"]),
        ],
    )


def read_problems() -> list[Problem]:
    """Return the first problems of each held-out file."""
    import pyarrow.parquet as pq

    return [
        Problem(row["prompt"], row["reward_model"]["ground_truth"], row["data_source"])
        for file in SOURCES.values()
        for row in pq.read_table(DATA / file).slice(0, NUM_PROBLEMS).to_pylist()
    ]


def greedy_answers(model: Any, tokenizer: Any, problems: Sequence[Problem]) -> list[Answer]:
    """Return the model's greedy answer to each problem, with its end-of-turn token where it ends."""
    inputs = tokenizer.apply_chat_template(
        [problem.messages for problem in problems],
        add_generation_prompt=True,
        return_dict=True,
        padding=True,
        return_tensors="pt",
    )
    output = model.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    width = inputs["input_ids"].shape[1]
    found = []
    for mask, row in zip(inputs["attention_mask"], output.tolist(), strict=True):
        tokens = row[width:]
        if tokenizer.eos_token_id in tokens:
            tokens = tokens[: tokens.index(tokenizer.eos_token_id) + 1]
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        found.append(Answer(row[width - int(mask.sum()) : width], tokens, text))
    return found


def accuracy(problems: Sequence[Problem], answers: Sequence[Answer], source: str | None = None) -> Estimate:
    """Return the share of right answers, to the problems of one source or all."""
    from opd.rewards.scorers import math_reward

    scores = [
        math_reward(answer.text, problem.truth).acc
        for problem, answer in zip(problems, answers, strict=True)
        if source in (None, problem.source)
    ]
    return share(sum(scores), len(scores))


def divergences(student: Any, teacher: Any, answers: Sequence[Answer]) -> list[float]:
    """Return the mean reverse KL a token of each answer."""
    import torch

    from opd.losses.divergences import kl, log_probs

    means = []
    for answer in answers:
        ids = torch.tensor([answer.prompt + answer.tokens])
        keep = len(answer.tokens) + 1  # the logits that predict the answer's tokens, and one more
        with torch.no_grad():
            of_student, of_teacher = (
                log_probs(model(input_ids=ids, logits_to_keep=keep).logits[0, :-1], 1.0) for model in (student, teacher)
            )
            means.append(float(kl(of_student, of_teacher).mean()))
    return means


def samples(problems: Sequence[Problem], before: Sequence[Answer], after: Sequence[Answer]) -> list[str]:
    """Return three problems with the answers before and after, as lines of text."""
    lines = []
    for problem, old, new in list(zip(problems, before, after, strict=True))[:NUM_SAMPLES]:
        lines += ["", f"problem: {shorten(problem.messages[-1]['content'], MAX_SHOWN)} (answer: {problem.truth})"]
        lines += [f"  before: {shorten(old.text, MAX_SHOWN)}", f"  after:  {shorten(new.text, MAX_SHOWN)}"]
    return lines
