"""The silent faults: one small function each over a row of finite metrics and the rows before it.

A verdict is a text with the measured values of a fault, an empty text without it, and None if the row does not say.
A function's name is the fault's; the table at the end says what it means and where to look. Each limit has its reason.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from opd.monitor.past import Past, Row, entropy, sampled_length, turn_length
from opd.runs.headline import ACCURACY_KEYS, GRAD_NORM_KEYS, JUDGED_TOKENS, first_of

Verdict = str | None
Judge = Callable[[Row, Past], Verdict]

DIFFERENCE = "training/rollout_probs_diff_mean"
LR_KEYS = ("opd/lr", "actor/lr")  # the rate that the schedule has set after the step's updates: the next step's
LR_USED = "opd/lr_used"
SAME_MODEL = 1e-5  # nats a token from the first step: the teacher gives the student's own distributions


def above(row: Row, key: str, limit: float, says: str) -> Verdict:
    """Judge a value against a limit; `says` formats the value."""
    value = row.get(key)
    return None if value is None else says.format(value) if value > limit else ""


def teacher_flat(row: Row, past: Past) -> Verdict:
    mean, spread = row.get("opd/teacher_entropy"), row.get("opd/teacher_entropy_std")
    if mean is None or spread is None or row.get("opd/num_tokens", 0.0) < JUDGED_TOKENS:
        return None
    # Equal distributions leave a spread of 1e-6 of the mean, real teachers 0.8 and more. Below 1e-4 nats a teacher is sure.
    return f"its entropy is {mean:.3g} nats at every token, within {spread:.1g}" if 1e-4 < mean > 100 * spread else ""


def teacher_shifted(row: Row, past: Past) -> Verdict:
    if "opd/teacher_prefers_neighbour" not in row:
        return None
    preferred = pairs = 0.0
    for share, num in reversed(past.window("opd/teacher_prefers_neighbour", "opd/teacher_pairs")):
        preferred, pairs = preferred + share * num, pairs + num
        if pairs >= JUDGED_TOKENS:
            # One position off gave 0.8 to 1.0, a teacher that knows nothing 0.4 to 0.7 by chance, a sound one 0.3 and less.
            pooled = preferred / pairs
            return f"it prefers a neighbour to {pooled:.0%} of the tokens" if pooled > 0.75 else ""
    return None


def prompt_template(row: Row, past: Past) -> Verdict:  # one template: all prompts have it or none
    return above(row, "data/prompts_off_template", 0.01, "{:.0%} of the prompts lack its header")


def sampling(row: Row, past: Past) -> Verdict:
    names = ("opd/surprise_gap", "opd/surprise_gap_z", "opd/num_tokens", "opd/num_updates", "opd/entropy")
    num = total = squares = nats = 0.0
    for gap, z, tokens, updates, mean in reversed(past.window(*names)):
        if not z or not updates or num >= 1000:  # of fewer tokens a few unlikely ones make the sum far from normal
            continue
        tokens /= updates  # the first update's
        num, total, nats = num + tokens, total + gap * tokens, nats + mean * tokens
        squares += (gap * tokens / z) ** 2
    if "opd/surprise_gap_z" not in row or num < 1000 or not squares:
        return None
    z, gap = total / math.sqrt(squares), total / num
    # The sum has mean 0 for a model's own samples; half precision and other kernels stay below a fifth of the entropy.
    if abs(z) <= 6.0 or abs(gap) <= 0.2 * nats / num:
        return ""
    less = "more" if gap < 0 else "less"
    return (
        f"tokens are {less} likely than the student would draw them: {gap:+.3g} nats a token, {z:+.0f} standard errors"
    )


def divergence_floored(row: Row, past: Past) -> Verdict:  # a model's logits cannot reach the floor
    return above(row, "opd/floored_share", 0.01, "in {:.0%} of the tokens")


def teacher_surprised(row: Row, past: Past) -> Verdict:  # sound: 5.9 and less; one position off: 9.5 and more
    return above(row, "opd/teacher_surprise", 9.0, "{:.3g} nats a token")


def grown(now: float | None, start: float | None, factor: float, least: float = 0.0) -> Verdict:
    """Judge growth from a run's start by a factor, and by no less than `least`."""
    if now is None or start is None or min(now, start) <= 0:
        return None
    return f"{now:.3g}, {start:.3g} at the start" if now > factor * start and now > start + least else ""


def divergence_grows(row: Row, past: Past) -> Verdict:
    return grown(row.get("opd/divergence"), past.start_of_part(lambda one: one.get("opd/divergence")), 5.0, 0.1)


def gradient_grows(row: Row, past: Past) -> Verdict:
    return grown(first_of(row, GRAD_NORM_KEYS), past.start(*GRAD_NORM_KEYS), 100.0)


def weights_frozen(row: Row, past: Past) -> Verdict:
    change, rate, norm = row.get("opd/weight_change"), row.get(LR_USED), first_of(row, GRAD_NORM_KEYS)
    if change is None or not rate or not norm:
        return None
    return f"a gradient of {norm:.3g} at a rate of {rate:.1e} changed nothing" if change <= 0 else ""


def lr_zero(row: Row, past: Past) -> Verdict:
    rate = first_of(row, (LR_USED, *LR_KEYS))
    return None if rate is None else "its schedule gives 0" if rate == 0 else ""


def lr_jump(row: Row, past: Past) -> Verdict:
    key = next((key for key in (LR_USED, *LR_KEYS) if key in row), None)
    rates = [rate for (rate,) in past.window(key)] if key else []
    if len(rates) < 2:
        return None
    *before, last, now = rates
    # A warm-up doubles at most; a schedule that has fallen by half does not rise again.
    if last > 0 and now > 5 * last:
        return f"from {last:.2g} to {now:.2g} in one step"
    if now > last and (highest := max(before, default=0.0)) > 2 * now:
        return f"it warms up again: {now:.2g} and rising, after {highest:.2g}"
    return ""


def rollout_stale(row: Row, past: Past) -> Verdict:
    now, least = row.get(DIFFERENCE), past.least(DIFFERENCE)
    if now is None or least is None:
        return None
    # Rounding does not grow, staleness does with each update; a difference below 1e-4 trains as well as none.
    if now <= max(100 * least, 1e-4):
        return ""
    return f"a token's probability differs by {now:.2g} on average, by {least:.1g} when it was least"


def rollout_disagrees(row: Row, past: Past) -> Verdict:
    if row.get("rollout/truncated"):  # then the rollout's probabilities are among the kept tokens
        return None
    # Half precision against single gives 0.01 and less, single against single 1e-7.
    return above(row, DIFFERENCE, 0.03, "a token's probability differs by {:.2g} on average")


def tool_tokens_trained(row: Row, past: Past) -> Verdict:
    written, masked = row.get("tool_mask/tool_tokens"), row.get("opd/tool_mask/tool_tokens")
    if written is None or masked is None:
        return None
    if written > 0 and masked == 0:
        return f"tools wrote {written:.0f} tokens, and none is masked"
    trained, sampled = row.get("opd/num_tokens"), row.get("tool_mask/llm_tokens")
    rows, trained_rows = row.get("opd/valid_rows"), row.get("opd/batch_size")
    if not (trained and sampled and rows and trained_rows):
        return ""
    trained /= max(round(trained_rows / rows), 1)  # epochs over the step's rows: each counts all tokens
    return f"{trained:.0f} tokens are trained on, {sampled:.0f} were sampled" if trained > sampled else ""


def answers_failed(row: Row, past: Past) -> Verdict:
    wanted = row.get("rollout/trajectories")
    if not wanted:
        return None
    unread = row.get("reward/unread", 0.0) / wanted
    shares = {
        "failed": row.get("rollout/failed", 0.0) / wanted,
        "could not be scored": row.get("reward/failed", 0.0) / wanted,
        "hold no answer that reward.function can read": unread * (unread > 0.9),  # an untrained model writes few
        "are empty": row.get("rollout/empty", 0.0),
    }
    # Below a tenth the step trains on nearly all of its answers.
    return ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share > 0.1)


def rewards_equal(row: Row, past: Past) -> Verdict:  # a step or two of problems that are all too hard are chance
    least, most = row.get("critic/score/min"), row.get("critic/score/max")
    if least is not None and most is not None:
        return f"each is {most:.3g}" if least == most else ""
    scores = [row.get("opd/score_mean"), first_of(row, ACCURACY_KEYS)]
    return None if None in scores else "each is 0" if scores == [0.0, 0.0] else ""


def rewards_fall(row: Row, past: Past) -> Verdict:
    window = past.window(*ACCURACY_KEYS, "rollout/trajectories")
    if first_of(row, ACCURACY_KEYS) is None or len(window) < 6:
        return None
    sums = [
        (sum(share * num for share, num in part), sum(num for _, num in part)) for part in (window[:-3], window[-3:])
    ]
    (before, num_before), (now, num_now) = ((right / max(num, 1.0), max(num, 1.0)) for right, num in sums)
    error = math.sqrt(before * (1 - before) * (1 / num_before + 1 / num_now))
    # Harder problems take less than two fifths of the right answers, and chance less than five errors.
    falls = now < 0.6 * before and before - now > 5 * error
    return f"{now:.0%} are right, {before:.0%} shortly before" if falls else ""


def one_row_trains(row: Row, past: Past) -> Verdict:
    rows = first_of(row, ("opd/valid_rows", "opd/batch_size"))
    if not rows or rows < 8:
        return None
    problem = row.get("opd/problem_weight_max"), row.get("opd/problem_weight_mean")
    pairs = ((row.get("opd/reward_weight_max"), 1.0), problem)
    shares = [most / (mean * rows) for most, mean in pairs if most is not None and mean]
    if not shares:
        return None
    return f"one of {rows:.0f} rows has {max(shares):.0%}" if max(shares) >= 0.5 else ""


def duplicate_rows(row: Row, past: Past) -> Verdict:
    twice, again = row.get("data/duplicate_prompts"), row.get("data/repeated_prompts", 0.0)
    same, nats = row.get("rollout/duplicate_answers", 0.0), row.get("opd/surprise", 0.0) * (sampled_length(row) or 0.0)
    if twice is None:
        return None
    found = [f"{twice:.0%} of the prompts are in the step twice"] if twice > 0.2 else []  # sets hold some copies
    if again > 0.5:
        found.append(f"{again:.0%} of the prompts come from one of the steps shortly before")
    if same > 0.5 and nats > 8.0:  # a mean answer of less the student may well give twice
        found.append(f"{same:.0%} of the further answers repeat one")
    return ", ".join(found)


def answers_cut(row: Row, past: Past) -> Verdict:
    return above(row, "response_length/clip_ratio", 0.5, "{:.0%} of them")


def entropy_collapse(row: Row, past: Past) -> Verdict:
    now, start, teacher = entropy(row), past.start_of_part(entropy), row.get("opd/teacher_entropy")
    if now is None or start is None:
        return None
    if now >= 0.1 * start or (teacher is not None and now >= 0.1 * teacher):
        return ""
    return f"{now:.2g} nats a token; {start:.2g} at the start" + (f", the teacher has {teacher:.2g}" if teacher else "")


def lengths(row: Row, past: Past, is_off: Callable[[float, float], bool]) -> Verdict:
    """Judge the length of a turn against its start."""
    now, start = turn_length(row), past.start_at_turns(turn_length)
    if now is None or start is None:
        return None
    return f"{now:.0f} tokens a turn on average, {start:.0f} at the start" if is_off(now, start) else ""


# Some tokens of difference, so that answers of a token or two do not count; three rows, so that hard problems do not.
def length_inflation(row: Row, past: Past) -> Verdict:
    return lengths(row, past, lambda now, start: now > max(1.75 * start, start + 2.0))


def length_collapse(row: Row, past: Past) -> Verdict:
    return lengths(row, past, lambda now, start: now < min(0.34 * start, start - 3.0))


def teacher_no_better(row: Row, past: Past) -> Verdict:
    now, start = row.get("opd/divergence"), past.start("opd/divergence")
    if now is None:
        return None
    if start is not None and max(abs(now), abs(start)) < SAME_MODEL:
        return f"it is the student: {now:.1g} nats a token between them, as at the start"
    own, teacher = row.get("opd/entropy"), row.get("opd/teacher_entropy")
    # A model that knows more of a text is not five times less sure of it; below a nat a teacher knows a good deal.
    if own is not None and teacher is not None and teacher > max(5 * own, 1.0):
        return f"its entropy on the student's text is {teacher:.2g} nats a token, the student's own {own:.2g}"
    pairs = past.window("opd/teacher_preference", "opd/valid_rows")[-3:]
    if len(pairs) < 2 or "opd/teacher_preference" not in row:  # one step's correlation is of too few rows
        return ""
    num = sum(rows for _, rows in pairs)
    mean = sum(share * rows for share, rows in pairs) / max(num, 1.0)
    if mean < -0.3 and mean * math.sqrt(num) < -4.0:
        return f"it prefers the answers that score less: correlation {mean:.2f} over {num:.0f} rows"
    return ""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault that metrics show: its name, its meaning, where to look, and in how many rows in a row it must show."""

    name: str
    what: str
    look: str
    judge: Judge
    begins_after: int = 1


# Detector, meaning, where to look, rows: a fault that may be chance, or a schedule's end, must show in several rows.
_TABLE: tuple[tuple[Judge, str, str, int], ...] = (
    (teacher_flat, "the teacher gives the same distribution everywhere",
     "its weights after they were loaded or brought back to the device: teacher.path, teacher.offload", 1),
    (teacher_shifted, "the teacher is asked one token too early or too late",
     "which positions are trained on (response_mask), and a model whose code shifts its logits", 1),
    (teacher_surprised, "the answers are next to impossible for the teacher",
     "teacher.path and its tokenizer; answers that are no text (a student that was never trained)", 1),
    (prompt_template, "prompts are not written by the model's chat template",
     "data.train's messages, the tokenizer's chat_template, data.enable_thinking", 1),
    (sampling, "the answers are not drawn from the student at the run's temperature",
     "rollout.temperature, top_p and what the rollout server makes of them; then the weight sync", 1),
    (divergence_floored, "the divergence is at the floor of a log-probability",
     "logits of -inf: a vocabulary masked in one model, weights that overflow; opd/divergence_max", 1),
    (divergence_grows, "student and teacher move apart",
     "actor.learning_rate, opd.loss_type; whether the teacher's weights and tokens are the right ones", 3),
    (gradient_grows, "the gradient grows without bound",
     "actor.learning_rate, actor.grad_clip, rows with extreme rewards or weights", 3),
    (weights_frozen, "the student's weights do not move",
     "the optimizer's parameters, dtype of the weights against actor.learning_rate", 1),
    (lr_zero, "the learning rate is 0",
     "actor.learning_rate, actor.num_warmup_steps and the schedule's length against trainer.total_steps", 3),
    (lr_jump, "the learning rate jumps",
     "the optimizer's and the schedule's state after a resume; overrides of the optimizer's rate", 1),
    (rollout_stale, "the rollout does not follow the student's updates",
     "the weight sync between trainer and rollout server: its log, and the rollout's memory at a wake", 1),
    (rollout_disagrees, "rollout and actor give a token different probabilities",
     "dtype and attention of the rollout, rollout.temperature, the weight sync", 1),
    (tool_tokens_trained, "the loss counts tokens that tools wrote",
     "response_mask of the agent loop: opd/tool_mask/*, `opdctl report`'s conversations", 1),
    (answers_failed, "answers failed, are empty or could not be scored",
     "warnings `rollout of data row` and the scorer's in driver.log; data.max_prompt_length, reward.function", 1),
    (rewards_equal, "all answers get the same reward, so none is better than another",
     "the reward function on a few answers (`opdctl report`), data.train's answers, the answer's format in the prompt", 5),
    (rewards_fall, "far fewer answers are right than shortly before",
     "the reward function on a few answers (`opdctl report`), the scorer's node and packages; then entropy and lengths", 1),
    (one_row_trains, "one row has most of the step's weight",
     "opd.reward_beta, opd.importance.problems: what spreads weights over rows", 1),
    (duplicate_rows, "the step trains on the same rows again",
     "data.train for copies, data.shuffle, the seeds of the rollout", 1),
    (answers_cut, "most answers end at the length limit",
     "data.max_response_length, the end token of model and template, data.enable_thinking", 1),
    (entropy_collapse, "the student has become sure of everything",
     "actor.learning_rate, the loss (opd.loss_type), opd/entropy next to opd/teacher_entropy", 1),
    (length_inflation, "answers have become much longer than at the start",
     "response_length/* next to the validation score; loss_agg_mode, the end token", 3),
    (length_collapse, "answers have become much shorter than at the start",
     "a few answers (`opdctl report`); the reward of short answers, the end token, loss_agg_mode", 3),
    (teacher_no_better, "the teacher is no better than the student",
     "teacher.path against model.path, an evaluation of the teacher (kind eval), opd/teacher_preference", 1),
)  # fmt: skip
FAULTS = tuple(
    Fault(name=judge.__name__.replace("_", "-"), what=what, look=look, judge=judge, begins_after=rows)
    for judge, what, look, rows in _TABLE
)
BY_NAME = {fault.name: fault for fault in FAULTS}
