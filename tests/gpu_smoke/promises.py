"""The promises of a run on a GPU, read from its files, and the parts of its steps' time."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opd.agent.trajectories import FOLDER as TRAJECTORIES
from opd.agent.trajectories import Trajectory, from_lines
from opd.evaluation.samples import Sample, read_generations
from opd.runs.headline import VALIDATION_LOSS

Row = dict[str, Any]
PEARSON = "training/rollout_actor_probs_pearson_corr"
MIN_PEARSON = {
    "opd": 0.999,
    "teachers": 0.999,
    "toy": 0.98,
    # Training adds the adapters to bf16 weights, vLLM has their sum rounded to bf16: 0.9754 was measured.
    "lora": 0.97,
    "grpo": 0.98,
    "agent": 0.98,
    "pipeline": 0.98,
    "lm": 0.98,
    "lm-lora": 0.97,
}
"""By run. The toy nets are 64 wide with logits of 10 to 20, which bf16 rounds by up to 1/16: there the two forwards,
vLLM's and the trainer's, differ by that much."""
MAX_DIVERGENCE_RATIO = 0.9
ACCURACY = {"eval": (0.15, 0.7), "lm": (0.0, 0.9)}
"""Accuracy of sampled answers, by run. The toy student (0.455 seen) is right in 0.31 greedy by its provenance.json. A model whose weights
did not arrive is never right; SmolLM2 writes no box before it has learned to, so its start is not judged."""
NUM_ENDS = 3
"""Steps averaged at each end of the curve: one step's batch alone is noise."""

# (label, metric) of the parts of an OPD step; what is left of the step's time is "rest".
PARTS = (
    ("rollout", "timing_s/gen"),
    ("teacher", "timing/teacher_s"),
    ("student", "timing/student_s"),
    ("weight sync", "timing_s/update_weights"),
    ("reference", "timing_s/ref"),
    ("update", "timing_s/update_actor"),
    ("old log-probs", "timing_s/old_log_prob"),
)


class Promise(NamedTuple):
    name: str
    observed: str
    kept: bool


def training_rows(rows: list[Row]) -> list[Row]:
    return [row for row in rows if "training/global_step" in row]


def promises(name: str, kind: str, rows: list[Row], *, num_steps: int) -> Iterator[Promise]:
    """Each promise of one run with what was observed."""
    steps = training_rows(rows)
    yield Promise(f"{num_steps} steps", f"{len(steps)} steps", len(steps) == num_steps)
    lost = sum(row["rollout/failed"] + row["reward/failed"] for row in steps)
    yield Promise("no rollout or reward failed", f"{lost:.0f} failed", lost == 0)
    worst = min((row[PEARSON] for row in steps if PEARSON in row), default=math.nan)
    least = MIN_PEARSON[name]
    yield Promise(f"rollout-vs-actor Pearson >= {least}", f"{worst:.6f} at worst", worst >= least)
    if kind == "grpo":
        norms = [row["actor/grad_norm"] for row in steps]
        yield Promise("every gradient finite", f"norms to {max(norms):.3g}", all(map(math.isfinite, norms)))
        return
    skipped = sum(row["opd/skipped_step"] + row["opd/nonfinite_tokens"] for row in steps)
    yield Promise("no step skipped, no token non-finite", f"{skipped:.0f}", skipped == 0)
    curve = [row["opd/divergence"] for row in steps]
    first, last = (statistics.mean(part) for part in (curve[:NUM_ENDS], curve[-NUM_ENDS:]))
    promise = f"divergence falls below {MAX_DIVERGENCE_RATIO} of its start"
    yield Promise(promise, f"{first:.4f} -> {last:.4f}", last < MAX_DIVERGENCE_RATIO * first)
    yield from accuracy_promises(rows)


def sft_promises(rows: list[Row], *, num_steps: int) -> Iterator[Promise]:
    """Return the promises of fine-tuning on given answers: its steps, and a validation loss that falls."""
    steps = training_rows(rows)
    yield Promise(f"{num_steps} steps of fine-tuning", f"{len(steps)} steps", len(steps) == num_steps)
    loss = [row[VALIDATION_LOSS] for row in rows if VALIDATION_LOSS in row]
    observed = " -> ".join(f"{one:.4f}" for one in (loss[:1] + loss[-1:]))
    yield Promise("the validation loss falls", observed, len(loss) > 1 and loss[-1] < loss[0])


def accuracy_promises(rows: list[Row]) -> Iterator[Promise]:
    """Return the promises of each set that was validated more than once."""
    names = {key for row in rows for key in row if key.startswith("val-core/") and "/acc/" in key}
    for name in sorted(name for name in names if not name.endswith("/stderr")):
        accuracy = [row[name] for row in rows if name in row]
        if len(accuracy) > 1:
            promise = f"validation accuracy rises, {name.split('/')[1]}"
            yield Promise(promise, f"{accuracy[0]:.3f} -> {accuracy[-1]:.3f}", accuracy[-1] > accuracy[0])


def teacher_promises(rows: list[Row], names: Sequence[str]) -> Iterator[Promise]:
    """Return the promises of a run with several teachers: each has rows in every step, and together they have all."""
    steps = training_rows(rows)
    fewest = min(row.get(f"opd/teacher/{name}/rows", 0.0) for row in steps for name in names)
    yield Promise(f"rows of {', '.join(names)} in every step", f"{fewest:.0f} at the fewest", fewest > 0)
    for what in ("rows", "tokens"):
        total = "opd/batch_size" if what == "rows" else "opd/num_tokens"
        lost = max(abs(row[total] - sum(row.get(f"opd/teacher/{name}/{what}", 0.0) for name in names)) for row in steps)
        yield Promise(f"their {what} are all of a step's", f"{lost:.0f} of none or of two", lost == 0)
    apart = max(
        abs(
            sum(row[f"opd/teacher/{name}/divergence"] * row[f"opd/teacher/{name}/tokens"] for name in names)
            / (row["opd/divergence"] * row["opd/num_tokens"])
            - 1
        )
        for row in steps
    )
    yield Promise("their divergences make the whole one", f"apart by {apart:.1e} of it", apart < 1e-5)


def agent_promises(rows: list[Row], run_dir: Path) -> Iterator[Promise]:
    """Return the further promises of a run with tools: its counts, and the conversations that it kept."""
    steps = training_rows(rows)
    calls, errors = (
        [
            sum(value for key, value in row.items() if key.startswith("agent/tool/") and key.endswith(end))
            for row in steps
        ]
        for end in ("/calls", "/errors")
    )
    observed = f"{min(calls):.0f} to {max(calls):.0f} calls a step, {sum(errors):.0f} errors in all"
    yield Promise("tools were called in every step", observed, min(calls) > 0)
    own, trained = (sum(row[key] for row in steps) for key in ("tool_mask/llm_tokens", "opd/num_tokens"))
    yield Promise("trained on the model's own tokens", f"{trained:.0f} trained, {own:.0f} its own", trained == own)
    kept = [item for path in sorted((run_dir / TRAJECTORIES).glob("*.jsonl")) for item in from_lines(path.read_bytes())]
    right = sum(map(replies_are_not_trained, kept))
    yield Promise(
        "every reply is read and never trained", f"{right} of {len(kept)} kept conversations", 0 < right == len(kept)
    )


def replies_are_not_trained(item: Trajectory) -> bool:
    """Check that the tools' texts are in the conversation, untrained, between two of the model's turns."""
    read = [segment.text for segment in item.segments if not segment.trained]
    answered = [turn for turn in item.calls if turn][: len(read)]
    alternate = all(a.trained != b.trained for a, b in zip(item.segments, item.segments[1:], strict=False))
    said = all(str(call["reply"]) in text for turn, text in zip(answered, read, strict=True) for call in turn)
    return alternate and item.segments[0].trained and said


def eval_promises(
    run_dir: Path, result: dict[str, Any], log: str, *, accuracy: tuple[float, float]
) -> Iterator[Promise]:
    """Check that table, file of answers and `result.json` of an evaluation say the same."""
    samples = read_generations((run_dir / "eval" / "generations.parquet").read_bytes())
    for source, found in result["eval"].items():
        of_set = [sample for sample in samples if sample.data_source == source]
        yield from set_promises(source, found, of_set, accuracy)
    shown = [name for name in ("acc/mean", "acc/pass@", "acc/maj") if name in log]
    yield Promise("the table has mean, pass@k, maj", ", ".join(shown), len(shown) == 3)


def set_promises(
    source: str, found: dict[str, Any], samples: Sequence[Sample], accuracy: tuple[float, float]
) -> Iterator[Promise]:
    """Return the promises of one data set of an evaluation."""
    asked = found["num_problems"] * found["num_samples"]
    keys = {(sample.problem_index, sample.sample_index) for sample in samples}
    yield Promise(f"{source}: every answer kept", f"{len(samples)} of {asked}", len(samples) == len(keys) == asked)
    failed = sum(sample.failed for sample in samples)
    yield Promise(f"{source}: no scorer failed", f"{failed} failed", not failed)
    mean, means = statistics.mean(sample.acc for sample in samples), found["means"]
    passes = [means[f"acc/pass@{k}"] for k in range(1, found["num_samples"] + 1)]
    yield Promise(
        f"{source}: mean and pass@1 are the answers' own",
        f"{means['acc/mean']:.4f}, {passes[0]:.4f}, {mean:.4f}",
        math.isclose(means["acc/mean"], mean, abs_tol=1e-9) and math.isclose(passes[0], mean, abs_tol=1e-9),
    )
    grows = passes == sorted(passes) and (passes[0] < passes[-1] or not mean)
    yield Promise(f"{source}: pass@k grows with k", f"{passes[0]:.3f} -> {passes[-1]:.3f}", grows)
    least, most = accuracy
    yield Promise(f"{source}: accuracy of {least} to {most}", f"{mean:.3f}", least <= mean <= most)


def step_parts(rows: list[Row]) -> dict[str, float]:
    """Median seconds of each part of a step, after the first two (they compile, capture and allocate)."""
    steps = training_rows(rows)[2:]
    parts = {
        label: statistics.median(row[name] for row in steps)
        for label, name in PARTS
        if all(name in row for row in steps)
    }
    if "student" in parts:
        parts.pop("update", None)  # teacher and student are its parts
    whole = statistics.median(row["timing_s/step"] for row in steps)
    return {**parts, "rest": whole - sum(parts.values()), "step": whole}
