"""The faults and how each is told from a row of metrics and the rows before it; every limit is here, with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from opd.monitor.past import TURNS, Past
from opd.runs.headline import ENTROPY_KEYS, GRAD_NORM_KEYS, first_of

Verdict = str | None
"""What was measured, where the fault shows; empty: it does not; None: the row cannot tell."""

DIFFERENCE = "training/rollout_probs_diff_mean"
LR_KEYS = ("opd/lr", "actor/lr")
"""What the schedule has set behind the step's updates: the next step's rate."""
LR_USED = "opd/lr_used"


class Limit(NamedTuple):
    """A number that decides, and why it is this one."""

    value: float
    why: str


LIMITS = {
    "judged_tokens": Limit(50, "tokens, or pairs of them: of fewer a share or a spread is chance"),
    "flat": Limit(
        0.01,
        "spread of the teacher's entropy over tokens, as a share of its mean: equal distributions leave rounding, 1e-6; real "
        "teachers are sure of some tokens and not of others, 0.8 and more",
    ),
    "flat_entropy": Limit(
        1e-4, "nats: below, a teacher is sure of every token, and what its entropies differ by is rounding"
    ),
    "uniform": Limit(
        0.9,
        "of a guess among all shared tokens, in the run's first row: a real teacher has a tenth of it, an untrained one all",
    ),
    "impossible": Limit(
        7.0,
        "nats a token, in the run's first row: with a small vocabulary a guess has less, and so may a sound teacher that is sure "
        "of what the student gets wrong, 4.8 in the toy's; one read one position off gave 9.5 and more",
    ),
    "neighbour": Limit(
        0.75,
        "share of tokens: a teacher read one position off gave 0.80 to 1.0, one that knows nothing of the text 0.4 to 0.7 by "
        "chance, a sound one 0.3 and less, also where the student is wrong in two answers of three",
    ),
    "off_template": Limit(0.01, "share of prompts: each is rendered by one template, so it is all of them or none"),
    "gap_share": Limit(0.2, "of the entropy: half precision and other kernels in the rollout stay below it"),
    "gap_z": Limit(6.0, "standard errors of a sum that has mean 0 where the answers are the student's own"),
    "gap_tokens": Limit(1000, "tokens: below, a few unlikely ones make the sum far from normal"),
    "floored": Limit(0.01, "share of tokens: logits of a model cannot reach the floor at all"),
    "unmoved": Limit(0.0, "what an update that was made with a gradient and a rate above 0 cannot leave"),
    "idle_steps": Limit(3, "a warm-up's first step and what a schedule sets behind the last one are 0 as well"),
    "difference": Limit(
        0.03,
        "mean difference of a token's probability: half precision against single gives 0.01 and less, single against single 1e-7",
    ),
    "growth": Limit(
        100.0, "times the smallest difference so far: rounding does not grow, staleness does with each update"
    ),
    "growth_difference": Limit(1e-4, "a smaller difference trains as well as none"),
    "failed": Limit(0.1, "share of answers: below, the step trains on nearly what it should"),
    "empty": Limit(0.1, "share of answers of one token where more were allowed: it is their end or nothing"),
    "duplicates": Limit(
        0.2, "share of the step's prompts that stand in it already: sets with copies of some problems stay below"
    ),
    "repeated": Limit(0.5, "share of prompts of the step before, where the data have enough others"),
    "same_answers": Limit(0.5, "share of the further answers to a prompt that one of it equals"),
    "same_answers_nats": Limit(8.0, "-log p of a mean answer: below, the student may well give it twice"),
    "cut": Limit(0.5, "share of answers: most of what is trained on has no end"),
    "collapse": Limit(0.1, "of the teacher's entropy on the same tokens, and of the student's own at the start"),
    "inflation": Limit(1.75, "times the mean length in the first steps of the stage, or with the horizon"),
    "inflation_tokens": Limit(2.0, "tokens more, so that answers of a token or two do not count"),
    "inflation_steps": Limit(3, "a step or two of problems with long answers are chance"),
    "same_model": Limit(1e-5, "nats a token from the first step on: the teacher gives the student's own distributions"),
    "unsure": Limit(5.0, "times the student's entropy: who knows more of a text is not so much less sure of it"),
    "unsure_entropy": Limit(1.0, "nats: below, a teacher knows a good deal, however sure the student is"),
    "preference_z": Limit(-4.0, "standard errors below no correlation at all, pooled over steps"),
    "preference": Limit(-0.3, "a correlation nearer to 0 says little of a teacher, over however many rows"),
    "preference_window": Limit(3, "steps that are pooled: as soon as a fault must be named, and no sooner"),
    "preference_steps": Limit(2, "one step's correlation alone is of too few rows"),
    "preferred_z": Limit(2.0, "standard errors on both sides of the first row's correlation, which is told with them"),
    "preferred": Limit(
        0.1,
        "where even the upper end of the first row's correlation is below, the teacher hardly tells right from wrong",
    ),
}


def limit(name: str) -> float:
    return LIMITS[name].value


def value_of(row: Mapping[str, float], *keys: str) -> float | None:
    """The first of the metrics that the row has, None where it has none or it is not finite."""
    found = first_of(row, keys)
    return None if found is None or not math.isfinite(found) else found


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that can be told from metrics."""

    name: str
    what: str
    look: str
    judge: Callable[[Mapping[str, float], Past], Verdict]
    begins_after: int = 1
    """Rows in a row that must show it before it is named."""


def entropy(row: Mapping[str, float]) -> float | None:
    """The student's mean entropy, in nats a token."""
    return value_of(row, *ENTROPY_KEYS)


def sampled_length(row: Mapping[str, float]) -> float | None:
    """Mean number of tokens that the student sampled for an answer; None where what tools wrote cannot be told from it."""
    sampled, rows = value_of(row, "opd/tool_mask/llm_tokens"), value_of(row, "opd/valid_rows")
    if sampled is not None and rows:
        return sampled / rows
    return None if value_of(row, "tool_mask/tool_tokens") else value_of(row, "response_length/mean")


def turn_length(row: Mapping[str, float]) -> float | None:
    """Mean number of tokens that the student sampled for one turn of a conversation; of a single turn, for its answer.

    A student that learns to call tools answers in more turns, which is not inflation; nor is it that a call has more tokens than
    a first guess, so lengths are compared among rows of about as many turns.
    """
    length, messages = sampled_length(row), value_of(row, TURNS)
    if length is None or not messages:
        return length
    return length / (messages / 2)  # messages come in pairs: prompt or tools' replies, and the student's turn


def rate_used(row: Mapping[str, float], past: Past) -> float | None:
    """The learning rate of the row's updates; of rows without it the lesser of what two rows set for the next, None of one."""
    if LR_USED in row:
        return value_of(row, LR_USED)
    rates = [rate for (rate,) in past.window(LR_KEYS[0])[-2:]]
    return min(rates) if len(rates) == 2 else None


def _teacher_flat(row: Mapping[str, float], past: Past) -> Verdict:
    mean, spread = value_of(row, "opd/teacher_entropy"), value_of(row, "opd/teacher_entropy_std")
    if mean is None or spread is None or (value_of(row, "opd/num_tokens") or 0.0) < limit("judged_tokens"):
        return None
    if mean > limit("flat_entropy") and spread < limit("flat") * mean:
        return f"its entropy is {mean:.3g} nats at every token, within {spread:.1g}"
    return ""


def _teacher_shifted(row: Mapping[str, float], past: Past) -> Verdict:
    if value_of(row, "opd/teacher_prefers_neighbour") is None:
        return None
    # Rows of older versions do not say how many pairs of neighbours there were.
    count = "opd/teacher_pairs" if "opd/teacher_pairs" in row else "opd/num_tokens"
    preferred = pairs = 0.0
    for share, num in reversed(past.window("opd/teacher_prefers_neighbour", count)):
        preferred, pairs = preferred + share * num, pairs + num
        if pairs >= limit("judged_tokens"):
            pooled = preferred / pairs
            return f"it prefers a neighbour to {pooled:.0%} of the tokens" if pooled > limit("neighbour") else ""
    return None


def _template(row: Mapping[str, float], past: Past) -> Verdict:
    share = value_of(row, "data/prompts_off_template")
    if share is None:
        return None
    return f"{share:.0%} of the prompts lack its header" if share > limit("off_template") else ""


def _sampling(row: Mapping[str, float], past: Past) -> Verdict:
    gaps = past.window("opd/surprise_gap", "opd/surprise_gap_z", "opd/num_tokens", "opd/num_updates", "opd/entropy")
    num = total = squares = entropy = 0.0
    if value_of(row, "opd/surprise_gap_z") is None:
        return None
    for gap, z, tokens, updates, mean_entropy in reversed(gaps):
        if not z or not updates:
            continue
        tokens /= updates  # the first update's
        num, total, entropy = num + tokens, total + gap * tokens, entropy + mean_entropy * tokens
        squares += (gap * tokens / z) ** 2
        if num >= limit("gap_tokens"):
            break
    if num < limit("gap_tokens") or not squares:
        return None
    z, gap = total / math.sqrt(squares), total / num
    if abs(z) > limit("gap_z") and abs(gap) > limit("gap_share") * entropy / num:
        less = "more" if gap < 0 else "less"
        return f"tokens are {less} likely than the student would draw them: {gap:+.3g} nats a token, {z:+.0f} standard errors"
    return ""


def _floored(row: Mapping[str, float], past: Past) -> Verdict:
    share = value_of(row, "opd/floored_share")
    if share is None:
        return None
    return f"in {share:.0%} of the tokens" if share > limit("floored") else ""


def _frozen(row: Mapping[str, float], past: Past) -> Verdict:
    change, rate, norm = value_of(row, "opd/weight_change"), rate_used(row, past), value_of(row, *GRAD_NORM_KEYS)
    if change is None or not rate or not norm:
        return None
    return f"a gradient of {norm:.3g} at a rate of {rate:.1e} changed nothing" if change <= limit("unmoved") else ""


def _idle(row: Mapping[str, float], past: Past) -> Verdict:
    rate = value_of(row, LR_USED, *LR_KEYS)  # over several rows the next step's rate shows it as well
    if rate is None:
        return None
    return "its schedule gives 0" if rate == 0 else ""


def _stale(row: Mapping[str, float], past: Past) -> Verdict:
    now, least = value_of(row, DIFFERENCE), past.least(DIFFERENCE)
    if now is None or least is None:
        return None
    if now > max(limit("growth") * least, limit("growth_difference")):
        return f"a token's probability differs by {now:.2g} on average, by {least:.1g} when it was least"
    return ""


def _disagree(row: Mapping[str, float], past: Past) -> Verdict:
    now = value_of(row, DIFFERENCE)
    # The rollout's probabilities are then those among the kept tokens, the actor's are among all.
    if now is None or value_of(row, "rollout/truncated"):
        return None
    return f"a token's probability differs by {now:.2g} on average" if now > limit("difference") else ""


def _tool_tokens(row: Mapping[str, float], past: Past) -> Verdict:
    written, masked = value_of(row, "tool_mask/tool_tokens"), value_of(row, "opd/tool_mask/tool_tokens")
    if written is None or masked is None:
        return None
    if written > 0 and masked == 0:
        return f"tools wrote {written:.0f} tokens, and none is masked"
    trained, sampled = value_of(row, "opd/num_tokens"), value_of(row, "tool_mask/llm_tokens")
    rows, trained_rows = value_of(row, "opd/valid_rows"), value_of(row, "opd/batch_size")
    if not (trained and sampled and rows and trained_rows):
        return ""
    trained /= max(round(trained_rows / rows), 1)  # epochs over the step's rows: each counts all tokens
    return f"{trained:.0f} tokens are trained on, {sampled:.0f} were sampled" if trained > sampled else ""


def _failed(row: Mapping[str, float], past: Past) -> Verdict:
    wanted, empty = value_of(row, "rollout/trajectories"), value_of(row, "rollout/empty")
    if not wanted:
        return None
    failed, unscored = ((value_of(row, name) or 0.0) / wanted for name in ("rollout/failed", "reward/failed"))
    shares = {"failed": failed, "could not be scored": unscored}
    found = [f"{share:.0%} {name}" for name, share in shares.items() if share > limit("failed")]
    if (empty or 0.0) > limit("empty"):
        found.append(f"{empty:.0%} are empty")
    return ", ".join(found)


def _duplicates(row: Mapping[str, float], past: Past) -> Verdict:
    shares = [value_of(row, f"data/{name}_prompts") for name in ("duplicate", "repeated")]
    same, surprise = (value_of(row, name) for name in ("rollout/duplicate_answers", "opd/surprise"))
    length = sampled_length(row)
    if shares[0] is None:
        return None
    found = [f"{shares[0]:.0%} of the prompts stand in the step twice"] if shares[0] > limit("duplicates") else []
    if (shares[1] or 0.0) > limit("repeated"):
        found.append(f"{shares[1]:.0%} of the prompts are the last step's")
    if same is not None and surprise and length and surprise * length > limit("same_answers_nats"):
        found += [f"{same:.0%} of the further answers repeat one"] if same > limit("same_answers") else []
    return ", ".join(found)


def _cut(row: Mapping[str, float], past: Past) -> Verdict:
    share = value_of(row, "response_length/clip_ratio")
    if share is None:
        return None
    return f"{share:.0%} of them" if share > limit("cut") else ""


def _collapse(row: Mapping[str, float], past: Past) -> Verdict:
    now, start = entropy(row), past.start_of_part(entropy)
    teacher = value_of(row, "opd/teacher_entropy")
    if now is None or start is None:
        return None
    share = limit("collapse")
    if now < share * start and (teacher is None or now < share * teacher):
        return f"{now:.2g} nats a token; {start:.2g} at the start" + (
            f", the teacher has {teacher:.2g}" if teacher else ""
        )
    return ""


def _inflation(row: Mapping[str, float], past: Past) -> Verdict:
    now, start = turn_length(row), past.start_at_turns(turn_length)
    if now is None or start is None or "sft/num_rows" in row:  # of given answers the data have the length
        return None
    is_longer = now > limit("inflation") * start and now > start + limit("inflation_tokens")
    return f"{now:.0f} tokens a turn on average, {start:.0f} at the start" if is_longer else ""


def _no_better(row: Mapping[str, float], past: Past) -> Verdict:
    now, start = value_of(row, "opd/divergence"), past.start("opd/divergence")
    if now is None:
        return None
    if start is not None and max(abs(now), abs(start)) < limit("same_model"):
        return f"it is the student: {now:.1g} nats a token lie between them, as at the start"
    own, teacher = value_of(row, "opd/entropy"), value_of(row, "opd/teacher_entropy")
    if own is not None and teacher is not None and teacher > max(limit("unsure") * own, limit("unsure_entropy")):
        return f"its entropy on the student's text is {teacher:.2g} nats a token, the student's own {own:.2g}"
    pairs = past.window("opd/teacher_preference", "opd/valid_rows")[-int(limit("preference_window")) :]
    if len(pairs) < limit("preference_steps") or value_of(row, "opd/teacher_preference") is None:
        return ""
    num = sum(rows for _, rows in pairs)
    mean = sum(share * rows for share, rows in pairs) / max(num, 1.0)
    if mean < limit("preference") and mean * math.sqrt(num) < limit("preference_z"):
        return f"it prefers the answers that score less: correlation {mean:.2f} over {num:.0f} rows"
    return ""


FAULTS = (
    Fault(
        name="teacher-flat",
        what="the teacher gives the same distribution everywhere",
        look="its weights after they were loaded or brought back to the device: teacher.path, teacher.offload",
        judge=_teacher_flat,
    ),
    Fault(
        name="teacher-shifted",
        what="the teacher is asked one token too early or too late",
        look="which positions are trained on (response_mask), and a model whose code shifts its logits",
        judge=_teacher_shifted,
    ),
    Fault(
        name="prompt-template",
        what="prompts are not written by the model's chat template",
        look="data.train's messages, the tokenizer's chat_template, data.enable_thinking",
        judge=_template,
    ),
    Fault(
        name="sampling",
        what="the answers are not drawn from the student at the run's temperature",
        look="rollout.temperature, top_p and what the rollout server makes of them; then the weight sync",
        judge=_sampling,
    ),
    Fault(
        name="divergence-floored",
        what="the divergence stands at the floor of a log-probability",
        look="logits of -inf: a vocabulary masked in one model, weights that overflow; opd/divergence_max",
        judge=_floored,
    ),
    Fault(
        name="weights-frozen",
        what="the student's weights do not move",
        look="the optimizer's parameters, dtype of the weights against actor.learning_rate",
        judge=_frozen,
    ),
    Fault(
        name="lr-zero",
        what="the learning rate is 0",
        look="actor.learning_rate, actor.num_warmup_steps and the schedule's length against trainer.total_steps",
        judge=_idle,
        begins_after=int(limit("idle_steps")),
    ),
    Fault(
        name="rollout-stale",
        what="the rollout does not follow the student's updates",
        look="the weight sync between trainer and rollout server: its log, and the rollout's memory at a wake",
        judge=_stale,
    ),
    Fault(
        name="rollout-disagrees",
        what="rollout and actor give a token different probabilities",
        look="dtype and attention of the rollout, rollout.temperature, the weight sync",
        judge=_disagree,
    ),
    Fault(
        name="tool-tokens-trained",
        what="the loss counts tokens that tools wrote",
        look="response_mask of the agent loop: opd/tool_mask/*, `opdctl report`'s conversations",
        judge=_tool_tokens,
    ),
    Fault(
        name="answers-failed",
        what="answers failed, are empty or could not be scored",
        look="warnings `rollout of data row` and the scorer's in driver.log; data.max_prompt_length, the reward function",
        judge=_failed,
    ),
    Fault(
        name="duplicate-rows",
        what="the step trains on the same rows again",
        look="data.train for copies, data.shuffle, the seeds of the rollout",
        judge=_duplicates,
    ),
    Fault(
        name="answers-cut",
        what="most answers end at the length limit",
        look="data.max_response_length, the end token of model and template, data.enable_thinking",
        judge=_cut,
    ),
    Fault(
        name="entropy-collapse",
        what="the student has become sure of everything",
        look="actor.learning_rate, the loss (opd.loss_type), opd/entropy beside opd/teacher_entropy",
        judge=_collapse,
    ),
    Fault(
        name="length-inflation",
        what="answers have become much longer than at the start",
        look="response_length/* beside the validation score; loss_agg_mode, the end token",
        judge=_inflation,
        begins_after=int(limit("inflation_steps")),
    ),
    Fault(
        name="teacher-no-better",
        what="the teacher is no better than the student",
        look="teacher.path against model.path, an evaluation of the teacher (kind eval), opd/teacher_preference",
        judge=_no_better,
    ),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
