"""The instructions of a prompt, and the four published data sets: their places, their layouts, and their problems with the ground truth made right."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from opd.data.raw_files import RawFile, read_raw, require_columns
from opd.rewards.scorers import bare, decimal, last_boxed

Variant = Literal["boxed", "dapo", "none"]
"""boxed: answer in a box (reward math_reward); dapo: an `Answer:` line (reward math_dapo); none: the bare problem."""
VARIANTS: tuple[Variant, ...] = get_args(Variant)

BOXED_SENTENCE = r"Let's think step by step and output the final answer within \boxed{}."
# Character for character as in DAPO-Math-17k: it has to be found at both ends of every prompt.
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'


def strip_dapo_instruction(text: str) -> str:
    """Return the problem inside a DAPO prompt, without each half of the instruction that is there."""
    return text.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX).rstrip()


def with_instruction(problem: str, variant: Variant) -> str:
    """Return the user message that asks `problem` in the way of `variant`."""
    problem = problem.rstrip()
    if variant == "boxed":
        return f"{problem}\n\n{BOXED_SENTENCE}"
    return f"{DAPO_PREFIX}{problem}{DAPO_SUFFIX}" if variant == "dapo" else problem


# What a boxed AIME answer may be wrapped in; the group keeps the content.
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textrm|mathbf|mathrm|bf|rm)\s*\{([^{}]*)\}")
_AIME_PADDING = "$ (){}~.\n"


class Problem(NamedTuple):
    """One problem, without any instruction."""

    row: int
    """Its position in the raw file, from 0: the `index` of the prepared row."""
    problem_id: str
    question: str
    answer: str
    style: str = "rule"


class MathSource(NamedTuple):
    """One published data set."""

    name: str
    """How commands and output files call it."""
    data_source: str
    """What the prepared rows call it; rewards and metrics see this."""
    raw_path: str
    """Below the data folder."""
    published_at: str
    read: Callable[[Path], list[Problem]]


def read_dapo(path: Path) -> list[Problem]:
    """Read DAPO-Math-17k: `prompt` (messages, or a text) and `reward_model` {ground_truth, style}.

    A blank problem or ground truth is kept, as "", for the filters to drop and count.
    """
    raw = read_raw(path, source=DAPO.published_at)
    require_columns(raw, [("prompt", "reward_model")])
    problems = []
    for row, record in enumerate(raw.records):
        question = strip_dapo_instruction(_user_message(raw, row))
        reward_model = record["reward_model"]
        if not isinstance(reward_model, dict) or "ground_truth" not in reward_model:
            raise raw.error(row, "reward_model", "must be an object with ground_truth")
        truth = reward_model["ground_truth"]
        style = reward_model.get("style") or "rule"
        problems.append(Problem(row, str(row), question, "" if truth is None else str(truth).strip(), style))
    return problems


def read_aime24(path: Path) -> list[Problem]:
    """Read AIME 2024 in any published layout: (id, problem, solution[, answer]) or (ID, Problem, Solution, Answer).

    The ground truth is the answer column where there is one, else the *last* box of the solution. In some rows the first box
    is an intermediate result. The truth is a whole number from 0 to 999 without leading zeros. A model says 25 where the exam's
    answer sheet says 025, and rewards compare text.
    """
    raw = read_raw(path, source=AIME24.published_at)
    require_columns(raw, [("problem", "solution"), ("problem", "answer"), ("Problem", "Answer")])
    names = ("problem", "solution", "answer", "id")
    question, solution, answer, identity = (
        names if "problem" in raw.columns else ("Problem", "Solution", "Answer", "ID")
    )
    problems = []
    for row, record in enumerate(raw.records):
        has_answer = answer in raw.columns
        truth = _aime_integer(raw.answer(row, answer) if has_answer else last_boxed(str(record[solution])) or "")
        if truth is None:
            rule = "must be" if has_answer else "must end in a box with"
            raise raw.error(row, answer if has_answer else solution, f"{rule} a whole number from 0 to 999")
        problems.append(Problem(row, str(record.get(identity, row)), raw.text(row, question), str(truth)))
    return problems


def read_aime25(path: Path) -> list[Problem]:
    """Return AIME 2025: `problem` and `answer`, a whole number from 0 to 999, also in dollars or a box."""
    raw = read_raw(path, source=AIME25.published_at)
    problems = []
    for problem in _text_problems(raw, identity="id"):
        plain = bare(problem.answer)
        truth = decimal(plain) or plain
        if not re.fullmatch(r"[0-9]{1,3}(\^\\circ)?", truth):
            raise raw.error(problem.row, "answer", "must be a whole number from 0 to 999")
        problems.append(problem._replace(answer=truth))
    return problems


def read_math500(path: Path) -> list[Problem]:
    """Return MATH-500: `problem`, `answer` (its text, out of dollars and box) and `unique_id`."""
    problems = _text_problems(read_raw(path, source=MATH500.published_at), identity="unique_id")
    return [
        one._replace(answer=bare(one.answer)) if one.answer.startswith(("$", "\\boxed")) else one for one in problems
    ]


def _text_problems(raw: RawFile, *, identity: str) -> list[Problem]:
    require_columns(raw, [("problem", "answer")])
    return [
        Problem(row, str(record.get(identity, row)), raw.text(row, "problem"), raw.answer(row, "answer"))
        for row, record in enumerate(raw.records)
    ]


def _user_message(raw: RawFile, row: int) -> str:
    """Return the text of a prompt that is a text or a conversation of one user message."""
    prompt = raw.records[row]["prompt"]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict):
        message = prompt[0]
        if message.get("role") == "user" and isinstance(content := message.get("content"), str):
            return content
    raise raw.error(row, "prompt", "must be a text or a list of one message {role: user, content: text}")


def _aime_integer(text: str) -> int | None:
    r"""Return the AIME answer that a text such as `025`, `\textbf{(073)}` or `m+n = \text{902}` states, if it is one."""
    unwrapped = _TEXT_COMMAND.sub(r"\1", text.rsplit("=", 1)[-1]).strip(_AIME_PADDING)
    return int(unwrapped) if re.fullmatch(r"[0-9]{1,3}", unwrapped) else None


DAPO = MathSource(
    "dapo",
    "math_dapo",
    "DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet",
    "Hugging Face data set YouJiacheng/DAPO-Math-17k-dedup, file distinct-prompts-with-rewards.parquet",
    read_dapo,
)
AIME24 = MathSource(
    "aime24",
    "aime24",
    "AIME_2024/aime_2024_problems.parquet",
    "Hugging Face data set HuggingFaceH4/aime_2024, file data/train-00000-of-00001.parquet, "
    "or Maxwell-Jia/AIME_2024, file aime_2024_problems.parquet",
    read_aime24,
)
AIME25 = MathSource(
    "aime25", "aime25", "AIME_2025/train.jsonl", "Hugging Face data set math-ai/aime25, file test.jsonl", read_aime25
)
MATH500 = MathSource(
    "math500",
    "math",
    "MATH-500/test.jsonl",
    "Hugging Face data set HuggingFaceH4/MATH-500, file test.jsonl",
    read_math500,
)
BENCHMARKS = (AIME24, AIME25, MATH500)
