"""Distillation from a teacher with another tokenizer, on the toy's additions: what spans of equal text can teach.

`python -m tests.evidence.cross` makes the teachers, trains every cell on each seed and writes `CROSS.md`; README.md says what is shown.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tests.evidence.alone import Trained, main_of
from tests.evidence.generate import generate
from tests.evidence.inference import Difference, paired
from tests.evidence.opsd import MAX_TOKENS, prompt_ids, share_right, update_loss
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3ForCausalLM

from opd.batch import RolloutRows
from opd.data.toy import STUDENT_DIR, TEACHER_DIR
from opd.data.toy.models import ToyShape, build_model
from opd.data.toy.sft import SftConfig, train_sft
from opd.data.toy.task import split_problems
from opd.data.toy.tokenizer import CHARACTERS, build_tokenizer
from opd.importance.counter import step_seed

SEEDS = (1, 2, 3, 4, 5)
NUM_UPDATES, BATCH_SIZE, NUM_WARMUP = 40, 64, 5
TEACHER = ToyShape(num_layers=3, hidden_size=128, num_vocab_rows=224, dtype=torch.float32)
LESSONS = SftConfig(num_steps=700, learning_rate=1.5e-3, seed=0)
"""The toy teacher's own."""
FOLDER = Path("build/evidence")
HABIT = 0.8
"""Share of the control teacher's lessons that drop every carry: the student's own."""
STOP, TURN, UNKNOWN = "<|stop|>", "<|turn|>", "<|other|>"
TEMPLATE = (
    "{% for m in messages %}" + TURN + "{{ m.role }}: {{ m.content }}" + STOP + "{% endfor %}"
    "{% if add_generation_prompt %}" + TURN + "{% endif %}"
)
SAME, HABITUAL = "same", "likelihood_habit"
RATES = {SAME: 3e-4, "likelihood": 3e-4, "uld": 1e-4, "gold": 1e-4, HABITUAL: 3e-4}
"""Of each cell the best of 1e-4, 3e-4 and 1e-3 on seed 11, which is not judged. The toy's teacher by exact reverse KL; three losses from
the teacher with the other tokenizer; one from a teacher that knows no more than the student and has that tokenizer too."""
PRIMARY, LEAST_SHARE = "likelihood", 0.9
"""Written before the first run of the seeds. A loss over spans is worth building if its mean gain is at least this share of the gain
of `same`, and if it is above the gain of `likelihood_habit` by the interval of the difference paired by seed."""


@dataclass(frozen=True, kw_only=True)
class Result(Trained):
    """How much of the student's answers was aligned as well."""

    aligned: float
    """Share of the student's response tokens that lie in a span."""
    one_to_one: float
    """Share of spans that are one token of each."""


def build_foreign_tokenizer() -> PreTrainedTokenizerBase:
    """Two digits before a third are one token, so that `041` is `04`, `1`; other ids, other special tokens, another template."""
    pairs = [f"{number:02d}" for number in range(100)]
    pieces = [*reversed(CHARACTERS), *pairs, UNKNOWN, TURN, STOP]
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d\d(?=\d)|[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (UNKNOWN, TURN, STOP)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=STOP,
        pad_token=STOP,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_teacher(tokenizer: PreTrainedTokenizerBase, *, habit: float = 0.0) -> Qwen3ForCausalLM:
    """The toy's teacher once more, by the same lessons in this tokenizer, kept in `FOLDER`; `habit` of them drop every carry."""
    splits = split_problems()
    model = build_model(TEACHER, tokenizer, seed=LESSONS.seed)
    lessons = SftConfig(**(vars(LESSONS) | {"dropped_carry_fraction": habit}))
    made_of = hashlib.sha256(f"{lessons} {TEACHER} {sorted(tokenizer.get_vocab().items())}".encode()).hexdigest()[:12]
    file = FOLDER / f"cross-{habit:g}-{made_of}.safetensors"
    if file.exists():
        model.load_state_dict(load_file(file))
        return model.eval()
    train_sft(model, tokenizer, sorted(set(splits.train) - set(splits.validation)), lessons, lambda step, loss: None)
    FOLDER.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    save_file(model.state_dict(), partial)
    partial.replace(file)  # another process of the study may look for it at any time
    return model


def spans_of(student: Sequence[int], teacher: Sequence[int]) -> tuple[list[int], list[int]]:
    """The span of each token of two tokenizations of one text; -1: behind the last place where both end a token.

    A span ends wherever both tokenizations end a token, so it is the shortest run of tokens of equal text.

    Args:
        student, teacher: the length of each token's text in bytes, at least 1.
    """
    ends = tuple(list(accumulate(lengths)) for lengths in (student, teacher))
    common = sorted(set(ends[0]) & set(ends[1]))
    last = common[-1] if common else 0
    of_student, of_teacher = ([bisect_left(common, end) if end <= last else -1 for end in side] for side in ends)
    return of_student, of_teacher


class Side(NamedTuple):
    """What one model says of a batch's responses, in its own tokens."""

    log_probs: Tensor
    """[T, V] of the next token at each response position."""
    tokens: Tensor
    """[T] int64."""
    spans: Tensor
    """[T] int64, the batch's span of each token; -1: none."""

    def span_log_probs(self, num: int) -> Tensor:
        """[S] log-probability of each span's text as these tokens."""
        own, kept = self._own(), self.spans >= 0
        return own.new_zeros(num).index_add(0, self.spans[kept], own[kept])

    def merged(self, num: int) -> Tensor:
        """[S, V] log of: the span's tokens up to its last, then each token of the vocabulary, by the chain rule."""
        kept = self.spans >= 0
        places = torch.arange(len(self.spans))[kept]
        last = torch.zeros(num, dtype=torch.int64).scatter_reduce(0, self.spans[kept], places, "amax")
        before = self.span_log_probs(num) - self._own()[last]
        return self.log_probs[last] + before[:, None]

    def _own(self) -> Tensor:
        return self.log_probs.gather(1, self.tokens[:, None]).squeeze(1)


Loss = Callable[[Side, Side, int, Tensor], Tensor]
"""Of student, teacher, number of spans, and [2, K] the tokens (of student, of teacher) with one text; [S]."""


def likelihood(student: Side, teacher: Side, num: int, shared: Tensor) -> Tensor:
    """Reverse KL of two outcomes, the span's text and everything else (ALM's binarised divergence, arXiv 2503.20083)."""
    p, q = (side.span_log_probs(num).clamp(max=-1e-6) for side in (student, teacher))
    other_p, other_q = (torch.log(-torch.expm1(one)) for one in (p, q))
    return p.exp() * (p - q) + other_p.exp() * (other_p - other_q)


def uld(student: Side, teacher: Side, num: int, shared: Tensor) -> Tensor:
    """Distance in L1 of the merged probabilities, each model's sorted by size (ULD, arXiv 2402.12030)."""
    return _sorted_distance(student.merged(num).exp(), teacher.merged(num).exp())


def gold(student: Side, teacher: Side, num: int, shared: Tensor) -> Tensor:
    """As GOLD's hybrid: merged probabilities of tokens with one text by reverse KL, the other ones sorted, by L1."""
    ours, theirs = student.merged(num), teacher.merged(num)
    p, q = ours[:, shared[0]], theirs[:, shared[1]]
    kept = torch.ones(ours.shape[1], dtype=torch.bool), torch.ones(theirs.shape[1], dtype=torch.bool)
    for mask, tokens in zip(kept, shared, strict=True):
        mask[tokens] = False
    return (p.exp() * (p - q)).sum(dim=1) + _sorted_distance(ours[:, kept[0]].exp(), theirs[:, kept[1]].exp())


def _sorted_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    width = max(ours.shape[1], theirs.shape[1])
    sides = [
        functional.pad(side, (0, width - side.shape[1])).sort(dim=1, descending=True)[0] for side in (ours, theirs)
    ]
    return (sides[0] - sides[1]).abs().sum(dim=1)


LOSSES: dict[str, Loss] = {"likelihood": likelihood, "uld": uld, "gold": gold}


def shared_tokens(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> Tensor:
    """[2, K] int64 ids of the tokens that have one text, and of the ends of an answer."""
    ours, theirs = student.get_vocab(), teacher.get_vocab()
    pairs = [(ours[text], theirs[text]) for text in sorted(ours.keys() & theirs.keys())]
    return torch.tensor([*pairs, (student.eos_token_id, teacher.eos_token_id)]).T


class Pair(NamedTuple):
    """A student's and a teacher's tokenizers."""

    student: PreTrainedTokenizerBase
    teacher: PreTrainedTokenizerBase

    def aligned(self, responses: Sequence[list[int]]) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """The teacher's tokens of each response, and the spans of both; the ends of an answer are a span of their own.

        A special token inside a response has no text: it and what follows are in no span.
        """
        read, ours, theirs = [], [], []
        for response in responses:
            special = [place for place, token in enumerate(response) if token in self.student.all_special_ids]
            text = response[: special[0]] if special else response
            ended = bool(special) and response[special[0]] == self.student.eos_token_id
            tokens = self.teacher.encode(self.student.decode(text), add_special_tokens=False)
            lengths = [
                [len(piece.encode()) for piece in tokenizer.convert_ids_to_tokens(ids)] + [1] * ended
                for tokenizer, ids in ((self.student, text), (self.teacher, tokens))
            ]
            of_student, of_teacher = spans_of(*lengths)
            read.append(tokens + [self.teacher.eos_token_id] * ended)
            ours.append(of_student + [-1] * (len(response) - len(of_student)))
            theirs.append(of_teacher)
        return read, ours, theirs


def _side(
    model: Qwen3ForCausalLM, vocab: int, prompts: Tensor, responses: Sequence[Sequence[int]], spans: Sequence[list[int]]
) -> Side:
    said = [torch.tensor(response, dtype=torch.int64) for response in responses]
    ids = torch.cat([prompts, pad_sequence(said, batch_first=True)], dim=1)
    places = torch.arange(ids.shape[1] - prompts.shape[1])
    kept = places < torch.tensor([len(response) for response in said])[:, None]
    logits = model(input_ids=ids).logits[:, prompts.shape[1] - 1 : -1, :vocab]
    starts = [0, *accumulate(max(row, default=-1) + 1 for row in spans)]
    of_batch = [start + one if one >= 0 else -1 for start, row in zip(starts, spans, strict=False) for one in row]
    return Side(torch.log_softmax(logits[kept], dim=-1), torch.cat(said), torch.tensor(of_batch))


def run(cell: str, teacher: Qwen3ForCausalLM, pair: Pair, *, seed: int, rate: float | None = None) -> Result:
    """Distil a copy of the toy's student from its own answers."""
    student = Qwen3ForCausalLM.from_pretrained(STUDENT_DIR, dtype=torch.float32)
    before = share_right(student, pair.student, None, seed=seed)
    optimizer = torch.optim.AdamW(student.parameters(), lr=RATES[cell] if rate is None else rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda made: min(1.0, (made + 1) / NUM_WARMUP))
    draw, problems, shared = random.Random(seed), split_problems().train, shared_tokens(*pair)
    num_tokens = num_aligned = num_spans = num_single = 0
    for step in range(NUM_UPDATES):
        asked = draw.sample(problems, BATCH_SIZE)
        prompts = prompt_ids(pair.student, asked)
        seeds = np.random.default_rng(step_seed(seed, step)).integers(0, 2**63, BATCH_SIZE, dtype=np.uint64)
        answers = generate(student, prompts, seeds, max_tokens=MAX_TOKENS).rows
        rows = RolloutRows(**{name: value.clone() for name, value in vars(answers).items() if value is not None})
        if cell == SAME:
            loss = update_loss(student, teacher, pair.student, rows, prompts)
        else:
            split = zip(rows.input_ids.split(rows.lens.tolist()), rows.response_lens.tolist(), strict=True)
            responses = [row[len(row) - num :].tolist() for row, num in split]
            read, ours, theirs = pair.aligned(responses)
            of_student = _side(student, len(pair.student), prompts, responses, ours)
            with torch.no_grad():
                of_teacher = _side(teacher, len(pair.teacher), prompt_ids(pair.teacher, asked), read, theirs)
            sizes = [torch.bincount(side.spans[side.spans >= 0]) for side in (of_student, of_teacher)]
            num = len(sizes[0])
            loss = LOSSES[cell.split("_")[0]](of_student, of_teacher, num, shared).sum() / len(of_student.tokens)
            num_tokens += len(of_student.tokens)
            num_aligned += int(sizes[0].sum())
            num_spans += num
            num_single += int(((sizes[0] == 1) & (sizes[1] == 1)).sum())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return Result(
        cell=cell,
        seed=seed,
        before=before,
        after=share_right(student, pair.student, None, seed=seed),
        aligned=num_aligned / num_tokens if num_tokens else 1.0,
        one_to_one=num_single / num_spans if num_spans else 1.0,
    )


def gains(results: Sequence[Result], cell: str, of: float, control: str) -> Difference:
    """Points of the cell's gain above `of` times the control's, paired by seed."""
    found = {(one.cell, one.seed): 100 * one.gain for one in results}
    return paired([found[cell, seed] - of * found[control, seed] for seed in sorted({one.seed for one in results})])


def table(results: Sequence[Result]) -> str:
    """Markdown: every run, and each cell against the same tokenizer and against the teacher that knows no more."""
    lines = [
        "| cell | seed | tokens aligned | spans one to one | start | after | gain |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in sorted(results, key=lambda one: (list(RATES).index(one.cell), one.seed)):
        lines.append(
            f"| `{one.cell}` | {one.seed} | {one.aligned:.4f} | {one.one_to_one:.3f} | {one.before:.3f} | {one.after:.3f} | "
            f"{one.gain:.3f} |"
        )
    lines += [
        "",
        f"| cell | share of the gain of `{SAME}` | points beyond {LEAST_SHARE:.0%} of it | 95 % | points beyond `{HABITUAL}` | 95 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    whole = sum(one.gain for one in results if one.cell == SAME)
    for cell in (name for name in RATES if name not in (SAME, HABITUAL)):
        share = sum(one.gain for one in results if one.cell == cell) / whole
        shown = [gains(results, cell, LEAST_SHARE, SAME), gains(results, cell, 1.0, HABITUAL)]
        name = f"`{cell}` (primary)" if cell == PRIMARY else f"`{cell}`"
        of = " | ".join(f"{one.mean:.1f} ± {one.standard_error:.1f} | {one.low:.1f} … {one.high:.1f}" for one in shown)
        lines.append(f"| {name} | {share:.3f} | {of} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    pair = Pair(build_tokenizer(), build_foreign_tokenizer())

    @cache
    def teacher(cell: str) -> Qwen3ForCausalLM:
        if cell == SAME:
            return Qwen3ForCausalLM.from_pretrained(TEACHER_DIR, dtype=torch.float32).eval()
        return make_teacher(pair.teacher, habit=HABIT if cell == HABITUAL else 0.0)

    return main_of(
        sys.modules[__name__],
        argv,
        cells=RATES,
        run=lambda cell, seed: run(cell, teacher(cell), pair, seed=seed),
        title="A teacher with another tokenizer, on the toy's additions",
    )


if __name__ == "__main__":
    sys.exit(main())
