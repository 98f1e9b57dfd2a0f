"""The toy task of `make quickstart`: bundled models that add, measured on all held-out sums."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opd.data.toy import TEACHER_DIR
from opd.quickstart.report import Report, share

SPEC, OUT = "quickstart.yaml", "build/quickstart"
VALIDATION_KEY = "val-core/toy_add/acc/mean@1"


def prepare(out: Path) -> list[str]:
    """Return no settings: the models are bundled, and the run writes its data."""
    return []


def measure(run_dir: Path, out: Path, rows: Sequence[Mapping[str, Any]], seed: int) -> Report:
    """Copy `heldout.parquet` to `out`, and measure the converted student and the teacher."""
    shutil.copy(run_dir / "data" / "heldout.parquet", out / "heldout.parquet")
    accuracies, num_problems = folder_accuracies({"model": out / "model", "teacher": TEACHER_DIR})
    held = [(int(row["step"]), float(row[VALIDATION_KEY])) for row in rows if VALIDATION_KEY in row]
    found = {"before": held[0][1], "after": held[-1][1], **accuracies}
    labels = ("student before", "student after", "  as converted folder", "teacher")
    return Report(
        columns={
            "held-out accuracy": {
                label: share(accuracy * num_problems, num_problems)
                for label, accuracy in zip(labels, found.values(), strict=True)
            }
        },
        facts={**{f"accuracy_{name}": value for name, value in found.items()}, "num_heldout": num_problems},
        heldout=held,
        teacher=found["teacher"],
        title=f"On-policy distillation, seed {seed}: {found['before']:.0%} to {found['after']:.0%} held-out",
        notes=[f"greedy answers to {num_problems} problems that no model was trained on"],
    )


def folder_accuracies(folders: dict[str, Path]) -> tuple[dict[str, float], int]:
    """Return the greedy accuracy of each Hugging Face folder on all held-out problems, and their number."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from opd.data.toy.task import split_problems
    from opd.quickstart.language import Problem, greedy_answers
    from opd.rewards.scorers import exact_match

    problems = [Problem(one.messages, one.answer, "toy_add") for one in split_problems().heldout]
    accuracies = {}
    for name, folder in folders.items():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        answers = greedy_answers(model, AutoTokenizer.from_pretrained(folder, padding_side="left"), problems)
        right = [exact_match(answer.text, one.truth).acc for answer, one in zip(answers, problems, strict=True)]
        accuracies[name] = sum(right) / len(problems)
    return accuracies, len(problems)
