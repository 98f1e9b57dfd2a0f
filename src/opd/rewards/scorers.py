"""The scorers themselves: pure functions from an answer and its ground truth to a score."""

import importlib.util
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from opd.isolation.serving import load_file

# One token at a time: an escaped character (`\{` is no group in TeX) or a brace.
_BRACE_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX_COMMANDS = ("\\boxed", "\\fbox")  # the second counts only where the first never occurs, as in verl's scorer


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` (else the last `\fbox{...}`), or None.

    Braces are balanced and escaped braces are no group. `\boxed 42$` without braces gives the text up to the next
    `$`. A last box that never closes gives None, since an answer cut off in mid-box is no answer, even after an
    earlier box. Linear in the text's length.
    """
    for command in _BOX_COMMANDS:
        start = text.rfind(command)
        if start >= 0:
            return _box_content(text, start + len(command))
    return None


def _box_content(text: str, start: int) -> str | None:
    """Return what follows a box command that ends at `start`."""
    content_start = start
    while content_start < len(text) and text[content_start] in " \t\n":
        content_start += 1
    if content_start < len(text) and text[content_start] == "{":
        return _balanced(text, content_start)
    if content_start == start:  # `\boxedx`: another command
        return None
    return text[content_start:].split("$", 1)[0].strip() or None


def _balanced(text: str, opening: int) -> str | None:
    """Return the content of the group whose `{` is at `opening`, or None where it never closes."""
    depth = 0
    for token in _BRACE_TOKEN.finditer(text, opening):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : token.start()]
    return None


_COMMANDS = re.compile(r"\\(?:boxed|text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*(?=\{)")
_QUOTES = (("\\(", "\\)"), ("\\[", "\\]"))
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
_GROUPS = re.compile(r"([+-]?[0-9]{1,3})((?:(?:,|\{,\}|\\,|\\!|,\\!| )[0-9]{3})+)((?:\.[0-9]+)?)")
_UNIT = re.compile(r"([+-]?[0-9.,]*[0-9])\s*\\(?:text|textrm|mathrm|mbox)\s*\{[^{}]*\}(?:\^\{?[0-9]\}?)?")
_AND = re.compile(r"\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_MINUS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\u2013": "-"})


def bare(text: str) -> str:
    r"""Return an answer without what people put around it: `$...$`, `\boxed{}`, `\text{}`, a full stop, a percent sign."""
    text, before = re.sub(r"(?<!\\)\$", "", text.translate(_MINUS)), ""
    while text != before:
        before, text = text, text.strip().removesuffix("\\%").rstrip(".\u3002%").rstrip()
        for begin, end in _QUOTES:
            if text.startswith(begin) and text.endswith(end) and len(text) >= 4:
                text = text[2:-2]
        command = _COMMANDS.match(text)
        content = command and _balanced(text, command.end())
        if command and content is not None and command.end() + len(content) + 2 == len(text):
            text = content
    return text


def decimal(text: str) -> str | None:
    """Return a decimal number without grouped thousands and needless zeros; None for another text."""
    if grouped := _GROUPS.fullmatch(text):
        text = grouped[1] + re.sub("[^0-9]", "", grouped[2]) + grouped[3]
    found = _NUMBER.fullmatch(text)
    if not found or not (found[2] or found[3]):
        return None
    part = (found[3] or "").rstrip("0")
    value = (found[2].lstrip("0") or "0") + (f".{part}" if part else "")
    return f"-{value}" if found[1] == "-" and value != "0" else value


def _parts(text: str) -> list[str]:
    """Return the parts of a list at its outermost commas."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def canonical(answer: str) -> str:
    """Return the form of an answer in which equal answers are equal texts: Hendrycks' normalisation (verl's), numbers, sets."""
    text = bare(answer)
    if unit := _UNIT.fullmatch(text):
        text = unit[1]
    text = _AND.sub(",", text)
    try:
        text = load_verl_scorer("math_reward").strip_string(decimal(text) or text)
    except (AssertionError, IndexError):  # malformed LaTeX ("\\frac" at the end)
        return text
    is_set = text.startswith("\\{") and text.endswith("\\}")
    parts = [decimal(part) or part for part in _parts(text[2:-2] if is_set else text)]
    return ",".join(sorted(parts)) if len(parts) > 1 else decimal(text) or text


@lru_cache(maxsize=8)
def load_verl_scorer(name: str) -> ModuleType:
    """Return verl's `utils/reward_score/<name>.py` as a module, without executing `verl/__init__.py`.

    Raises:
        ImportError: verl is not installed, or has no such scorer.
    """
    package = importlib.util.find_spec("verl")  # a top-level look-up finds the package and runs nothing of it
    if package is None or package.origin is None:
        raise ImportError(
            f"reward function {name!r} is built on verl's scorer and verl is not installed: install the `train` extra"
        )
    path = Path(package.origin).parent / "utils" / "reward_score" / f"{name}.py"
    if not path.is_file():
        raise ImportError(
            f"verl at {path.parents[2]} has no scorer {path.name}: install verl 0.9.1 (the `train` extra)"
        )
    return load_file(path, f"_opd_verl_scorer_{name}")


NO_ANSWER = ""
"""`pred` of an answer in which no answer was found."""
MINERVA_NO_ANSWER = "[INVALID]"
"""What `math_dapo` reports in that case, as the DAPO scorer does everywhere."""
NO_ANSWER_PREDICTIONS = frozenset({NO_ANSWER, MINERVA_NO_ANSWER})

MAX_ANSWER_CHARS = 2000
"""A longer extracted answer is wrong unseen: it bounds the string work (the longest answer of MATH-500 has 159)."""
DAPO_TAIL_CHARS = 300
"""`math_dapo` reads only the end of an answer (verl's own bound)."""


class Score(NamedTuple):
    """Result of a scorer for one answer."""

    score: float
    """The reward."""
    acc: float
    """1.0 if the answer is right, else 0.0."""
    pred: str
    """The extracted answer, normalised: equal strings are equal answers, which is what maj@k votes over."""
    breakdown: Mapping[str, float] = {}
    """Further named numbers of a custom function, passed on to verl as they are."""


def _is_thought(solution: str) -> bool:
    """Return True for an answer that was cut off within its thought, and so has no answer."""
    return "<think>" in solution.rpartition("</think>")[2]


def exact_match(solution: str, ground_truth: str) -> Score:
    """Return 1 if the answer equals the ground truth, white space at both ends aside; the toy task's reward."""
    pred = solution.strip()
    correct = float(pred == ground_truth.strip())
    return Score(correct, correct, pred[:MAX_ANSWER_CHARS])


def math_reward(solution: str, ground_truth: str) -> Score:
    r"""Return 1 if the last `\boxed{}` equals the ground truth in `canonical` form, else 0."""
    answer = None if _is_thought(solution) else last_boxed(solution)
    if answer is None:
        return Score(0.0, 0.0, NO_ANSWER)
    if len(answer) > MAX_ANSWER_CHARS or len(ground_truth) > MAX_ANSWER_CHARS:
        return Score(0.0, 0.0, answer[:MAX_ANSWER_CHARS])
    pred = canonical(answer)
    correct = float(pred == canonical(ground_truth))
    return Score(correct, correct, pred)


def math_dapo(solution: str, ground_truth: str) -> Score:
    r"""Return +1 or -1: the last `Answer: ...` line of the last 300 characters, Minerva normalisation (verl's) of both sides."""
    tail = "" if _is_thought(solution) else solution[-DAPO_TAIL_CHARS:].translate(_MINUS)
    ground_truth = bare(ground_truth)
    correct, pred = load_verl_scorer("math_dapo").is_correct_minerva(tail, ground_truth)
    if (value := decimal(pred)) is not None:
        pred, correct = value, correct or value == decimal(ground_truth)
    return Score(1.0 if correct else -1.0, float(correct), pred)


def math_verify(solution: str, ground_truth: str) -> Score:
    r"""Return 1 if the library math-verify finds the answer mathematically equal to the ground truth, else 0.

    The ground truth is read as `\boxed{ground_truth}`. The library's own alarms are off: it runs in the killable
    pool, whose deadline ends any hang, those in C code included. A last box that never closes is no answer.

    Raises:
        ValueError: the ground truth itself cannot be read as mathematics.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    gold = parse(f"\\boxed{{{bare(ground_truth)}}}", [LatexExtractionConfig()], parsing_timeout=0)
    if not gold:
        raise ValueError(f"math-verify cannot read the ground truth {ground_truth!r}")
    boxed = last_boxed(solution)
    is_cut = _is_thought(solution) or (boxed is None and _BOX.search(solution))
    solution = solution.translate(_MINUS)
    if boxed:
        solution = solution.replace(f"{{{boxed.translate(_MINUS)}}}", f"{{{bare(boxed)}}}")
    answer = [] if is_cut else parse(solution, [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=0)
    if not answer:
        return Score(0.0, 0.0, NO_ANSWER)
    pred = _expression_text(answer)
    if _is_undefined(gold[0]) or _is_undefined(answer[0]):  # 12:00 is read as 12 / 00
        correct = float(pred == _expression_text(gold))
    else:
        correct = float(verify(gold, answer, timeout_seconds=0, raise_on_error=False) and not _are_apart(gold, answer))
    return Score(correct, correct, pred)


_BOX = re.compile(r"\\(?:boxed|fbox)\b")
_TINY, _APART = 1e-3, 1e-6


def _is_undefined(expression: Any) -> bool:
    from sympy import nan, zoo

    return not isinstance(expression, str) and expression in (zoo, nan)


def _are_apart(gold: list[Any], answer: list[Any]) -> bool:
    """Return True for different numbers so small that the library, which rounds to six decimals, takes them for equal."""
    from sympy import Expr, N

    if not all(isinstance(one[0], Expr) and one[0].is_number for one in (gold, answer)):
        return False
    left, right = (N(one[0], 30) for one in (gold, answer))
    largest = max(abs(left), abs(right))
    return bool(0 < largest < _TINY and abs(left - right) > _APART * largest)


def _expression_text(parsed: list[Any]) -> str:
    """Return math-verify's parse as text in which equal answers are equal: 1/2 for \\frac{1}{2}, 5 for 5.0 and for x = 5."""
    from sympy import Eq, Float

    first = parsed[0]
    if isinstance(first, Eq) and first.lhs.is_Symbol:
        first = first.rhs
    if isinstance(first, Float) and float(first).is_integer():
        first = int(first)
    try:
        text = str(parsed[-1] if _is_undefined(first) else first)
    except ValueError:  # an integer of more than 4300 digits: Python refuses to print it
        text = str(parsed[-1])
    return text[:MAX_ANSWER_CHARS]


class BuiltinFunction(NamedTuple):
    """A scorer by name."""

    scorer: Callable[..., Score]
    isolated: bool
    """Whether it needs the killable pool; the others are bounded string work that cannot hang."""
    worst_score: float = 0.0
    """What a wrong answer scores, and so an answer whose scoring fails."""


BUILTIN_FUNCTIONS: dict[str, BuiltinFunction] = {
    "exact_match": BuiltinFunction(exact_match, isolated=False),
    "math_reward": BuiltinFunction(math_reward, isolated=False),
    "math_dapo": BuiltinFunction(math_dapo, isolated=False, worst_score=-1.0),
    "math_verify": BuiltinFunction(math_verify, isolated=True),
}


def as_answer(function: str, ground_truth: str) -> str:
    """Return an answer that says a ground truth as a built-in function looks for it."""
    if function == "exact_match":
        return ground_truth
    return f"Answer: {bare(ground_truth)}" if function == "math_dapo" else f"\\boxed{{{bare(ground_truth)}}}"
