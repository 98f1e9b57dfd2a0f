"""Answers by step, tokens with their alternatives, and pictures of lengths and tokens, from the files that a run keeps for people."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from opd.agent.trajectories import FOLDER, Trajectory, from_lines
from opd.evaluation.samples import Sample
from opdctl.console import note
from opdctl.runs.gather import LoadedRun
from opdctl.tables import NONE, Sheet, number, percent

NUM_STEPS = 3
"""Steps side by side: the first and the newest."""
NUM_TOKENS, NUM_LARGEST = 256, 6
COLUMNS = ("texts", "entropy", "divergence", "student", "teacher")
CONTEXT_CHARS = 32
LEVELS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Nats of divergence from which on a token has the next darker colour."""
NATS = (-4.0, 1.0)  # powers of 10
Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Rectangles in a field of 100 by 40: place, size, opacity and words of each."""

    title: str
    caption: str
    cells: Sequence[tuple[float, float, float, float, float, str]]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A rollout's first tokens: level of divergence, words and text of each."""

    title: str
    prompt: str
    tokens: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step that a run keeps: lengths of all its answers, some rollouts token by token, the tokens that differ most, a picture."""

    name: str
    lengths: Sequence[int]
    shown: Sequence[Tokens]
    sheet: Sheet
    density: Picture


def _read(run: LoadedRun, prefix: str, num: int, parse: Callable[[bytes], Found]) -> Iterator[Found]:
    """Yield the first file of these keys and the newest, as many as `num`; an unreadable file is noted."""
    keys = sorted(key for key in run.listing.objects if key.startswith(prefix))
    newest = keys[-max(num - 1, 1) :]
    for key in sorted({*newest, *keys[: num > 1]}):
        try:
            yield parse(run.listing.store.get(key))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, OSError) as error:
            note(f"warning: {run.record.run_id}: {key} is left out: {error}")


def answers_by_step(runs: Sequence[LoadedRun]) -> list[dict[str, Sample]]:
    """Return answers to the same validation problem at several steps, and the newest conversations of the training."""
    rows: dict[tuple[Any, ...], dict[str, Sample]] = {}
    for run in runs:
        for partition, num in (("train", 1), ("validation", NUM_STEPS)):
            for talks in _read(run, f"{FOLDER}/{partition}-", num, from_lines):
                for talk in talks:
                    place = (run.record.run_id, partition, talk.data_source, talk.data_index, talk.sample)
                    title = f"{run.record.run_id}, {partition}, step {talk.step}"
                    rows.setdefault(place, {})[title] = _as_answer(talk)
    return list(rows.values())


def _as_answer(talk: Trajectory) -> Sample:
    """Return a conversation as an answer: what the model did not write has a mark in front of each line."""
    masked = ("\n".join(f"| {line}" for line in part.text.split("\n")) for part in talk.segments)
    texts = [part.text if part.trained else text for part, text in zip(talk.segments, masked, strict=True)]
    return Sample(
        run_id="", step=talk.step, data_source=talk.data_source, problem_index=talk.data_index, sample_index=talk.sample,
        prompt=talk.prompt, response="\n".join(texts), pred=talk.ending or str(talk.breakdown.get("pred", "")),
        ground_truth=talk.ground_truth, score=talk.score, acc=float(talk.breakdown.get("acc", talk.score > 0)),
        failed=False, num_tokens=sum(part.num_tokens for part in talk.segments), truncated=False,
    )  # fmt: skip


def kept_steps(runs: Sequence[LoadedRun]) -> list[Step]:
    """Return the first and the newest step of which each run keeps rollouts token by token."""
    return [step for run in runs for step in _read(run, "tokens/", 2, partial(_step, run.record.run_id))]


def _step(run_id: str, data: bytes) -> Step:
    kept = json.loads(data)
    name, shown, lines = f"{run_id}, step {kept['step']}", list[Tokens](), list[tuple[str, ...]]()
    for row in kept["rows"]:
        tokens = list(zip(*(row[column][:NUM_TOKENS] for column in COLUMNS), strict=True))
        title = f"{name}, data row {row['data_index']}, score {number(row['score'])}: {row['num_tokens']} tokens"
        shown.append(Tokens(title=title, prompt=row["prompt"], tokens=[_token(*token) for token in tokens]))
        for place in sorted(range(len(tokens)), key=lambda i: -(tokens[i][2] or 0.0))[:NUM_LARGEST]:
            text, _, divergence, *tops = tokens[place]
            before = "".join(row["texts"][:place])[-CONTEXT_CHARS:]
            where = f"{row['data_index']}: {place + 1}"
            lines.append((where, before, text, number(divergence), *map(_alternatives, tops)))
    heads = ("data row: token", "after", "token", "divergence, nats", "student's likeliest", "teacher's likeliest")
    sheet = Sheet(names=heads, lines=lines, title=f"{name}: tokens with the largest divergence")
    density = _density(f"Entropy and divergence of the shown tokens: {name}", kept["rows"])
    lengths = np.asarray(kept["lengths"], dtype=np.int64).tolist()  # OverflowError beyond them
    return Step(name=name, lengths=lengths, shown=shown, sheet=sheet, density=density)


def _token(text: str, entropy: float | None, divergence: float | None, *tops: Any) -> tuple[str, str, str]:
    level = "x" if divergence is None else str(bisect_right(LEVELS, divergence))
    models = [f"{name}: {_alternatives(top)}" for name, top in zip(("student", "teacher"), tops, strict=True) if top]
    known = [f"{name} {value:.3g}" for name, value in (("entropy", entropy), ("divergence", divergence)) if value is not None]  # fmt: skip
    # A line break and a part of a character have no width of their own.
    return f"d{level}", " · ".join([*known, *models]) or "not trained", text.replace("\n", "↵\n") or "▫"


def _alternatives(top: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{text!r} {percent(p)}" for text, p in top) or NONE


def histograms(lengths: Mapping[str, Sequence[int]]) -> list[Picture]:
    """Return the histogram of each name's lengths, all over the same range."""
    found, of_all = list[Picture](), [length for each in lengths.values() for length in each]
    for name, each in lengths.items():
        low, high = min(of_all), max(*of_all, min(of_all) + 7)
        counts, edges = np.histogram(each, bins=min(25, high - low + 1), range=(low, high + 1))
        width, tallest = 100 / len(counts), max(counts.tolist())
        heights = [40 * count / max(tallest, 1) for count in counts.tolist()]
        cells = [
            (i * width, 40 - height, 0.92 * width, height, 1.0, f"{counts[i]} of {edges[i]:.4g} to {edges[i + 1]:.4g} tokens")
            for i, height in enumerate(heights)
        ]  # fmt: skip
        caption = f"{len(each)} answers of {min(each)} to {max(each)} tokens, mean {np.mean(each):.4g}; axis {low} to {high}, tallest bar {tallest}"
        found.append(Picture(title=f"Length of the answers: {name}", caption=caption, cells=cells))
    return found


def _density(title: str, rows: Sequence[Any]) -> Picture:
    """Return the number of tokens by entropy and divergence."""
    pairs = [
        (h, d) for row in rows for h, d in zip(row["entropy"], row["divergence"], strict=True) if None not in (h, d)
    ]
    powers = np.log10(np.clip(np.array(pairs, dtype=float).reshape(-1, 2), 10 ** NATS[0], 0.999 * 10 ** NATS[1]))
    counts, _ = np.histogramdd(powers, bins=(25, 10), range=[NATS, NATS])
    cells = [
        (4 * i, 36 - 4 * j, 4, 4, float(f"{(counts[i, j] / max(counts.max(), 1)) ** 0.5:.2f}"), f"{counts[i, j]:.0f} tokens")
        for i, j in np.argwhere(counts).tolist()
    ]  # fmt: skip
    caption = f"{len(pairs)} tokens; right: entropy, up: divergence, each 0.0001 to 10 nats on a logarithmic scale"
    return Picture(title=title, caption=caption, cells=cells)
