"""Templates of GSM-Symbolic: a word problem with variables, their ranges, conditions on them, and a worked solution."""

import random
import re
import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from types import CodeType
from typing import Any, NamedTuple

Values = dict[str, Any]
Draw = Callable[[random.Random], Any]


class Drawing(NamedTuple):
    """A concrete problem and its worked solution, whose last line is `#### NUMBER`."""

    question: str
    solution: str


class Line(NamedTuple):
    """A line `a, b = expression` of a template, and the conditions that can be checked once it has a value."""

    names: list[str]
    expression: CodeType
    draw: Draw | None
    """The expression's value where it is a choice that reads no variable, made once for all drawings."""
    conditions: list[CodeType]


class Template:
    """A template, ready to be drawn from.

    Python evaluates the expressions of the file, so the file must be one whose hash is known.
    """

    def __init__(self, text: str, words: Mapping[str, Any]) -> None:
        """Read the text of a TOML file; `words` are the lists (names, fruits, numbers) that its expressions name."""
        fields = tomllib.loads(text)
        self._solution = str(fields["answer_annotated"]).strip("\n")
        annotated = str(fields["question_annotated"]).strip("\n")
        self._question = annotated.splitlines()[0].strip()
        self._words = {**_CHOICES, **_FUNCTIONS, **words, "__builtins__": {}}
        lines = self._lines(annotated)
        # Lines with conditions come first, so that an attempt that fails costs little. They read no other line.
        constrained = {name for line in lines for condition in line.conditions for name in condition.co_names}
        self._constrained = [line for line in lines if constrained & set(line.names)]
        self._free = [line for line in lines if line not in self._constrained]

    def _lines(self, annotated: str) -> list[Line]:
        lines = [line.partition("=") for line in _section(annotated, "init") if "=" in line]
        conditions = [_code(line) for line in _section(annotated, "conditions")]
        variables = {name for left, _, _ in lines for name in _names(left)}
        found: list[Line] = []
        known: set[str] = set()
        for left, _, right in lines:
            names, expression = _names(left), _code(right)
            known |= set(names)
            ready = [one for one in conditions if variables & set(one.co_names) <= known]
            conditions = [one for one in conditions if one not in ready]
            value = None if variables & set(expression.co_names) else eval(expression, self._words)
            found.append(Line(names, expression, value if callable(value) else None, ready))
        return found

    def draw(self, rng: random.Random, max_attempts: int) -> tuple[Drawing | None, int]:
        """Return a problem whose conditions hold, None after too many attempts, and the number of attempts."""
        for attempt in range(1, max_attempts + 1):
            values = dict(self._words)
            if all(_assign(line, values, rng) for line in self._constrained):
                for line in self._free:
                    _assign(line, values, rng)
                return Drawing(_filled(self._question, values), _filled(self._solution, values)), attempt
        return None, max_attempts


def _section(annotated: str, name: str) -> list[str]:
    """Return the lines of `#init:` or `#conditions:`, without the dash in front."""
    found = re.search(rf"#{name}:(.*?)(?=^#\w+:|\Z)", annotated, re.DOTALL | re.MULTILINE)
    lines = [line.strip("- ") for line in found[1].splitlines()] if found else []
    return [line for line in lines if line and line != "True"]


def _names(left: str) -> list[str]:
    return [name.strip() for name in re.sub(r"[()$]", "", left).split(",") if name.strip()]


def _code(expression: str) -> CodeType:
    return compile(expression.strip(), expression.strip(), "eval")


def _assign(line: Line, values: Values, rng: random.Random) -> bool:
    """Draw a line's values and return whether its conditions hold."""
    drawn = line.draw or eval(line.expression, values)
    drawn = drawn(rng) if callable(drawn) else drawn
    items = list(drawn) if len(line.names) > 1 else [drawn]
    if len(items) != len(line.names):  # pairs for `(a, a_text), (b, b_text)`
        items = [item for pair in items for item in pair]
    values.update((name, _number(item)) for name, item in zip(line.names, items, strict=True))
    return all(eval(condition, values) for condition in line.conditions)


def _number(value: Any) -> Any:
    """Return a text that is a number as a number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"-?\d+(/\d+)?", value):
        number = Fraction(value)
        return number if "/" in value else int(number)
    return float(value) if re.fullmatch(r"-?\d+\.\d+", value) else value


def _filled(text: str, values: Values) -> str:
    """Replace each `{name, example}` and `{expression}`, and write sentences with capitals and numbers with commas."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1].split(",")[0].strip()
        value = values[name] if name in values else eval(_code(match[1]), values)
        return _shown(value)

    text = re.sub(r"\{([^}]+)\}", value_of, text)
    text = re.sub(r"(?<![\d.])\d{5,}", lambda match: f"{int(match[0]):,}", text)
    text = text[:1].upper() + text[1:]
    return re.sub(r"([.!?]+\s+)([a-z])", lambda match: match[1] + match[2].upper(), text)


def _shown(value: Any) -> str:
    """Return a number without the noise of binary fractions, anything else as text."""
    if isinstance(value, float):
        value = round(value, 6)
        return str(int(value) if value.is_integer() else value)
    return str(value)


def _sample(items: Any, count: int = 1) -> Draw:
    pool = list(items)
    return (lambda rng: rng.choice(pool)) if count == 1 else (lambda rng: rng.sample(pool, count))


def _sequential(items: Any, count: int) -> Draw:
    def drawn(rng: random.Random) -> Any:
        first = rng.randrange(len(items))
        return [items[(first + number) % len(items)] for number in range(count)]

    return drawn


def _arange(start: float, end: float, step: float = 1) -> Draw:
    count = round((end - start) / step) + 1
    return lambda rng: round(start + step * rng.randrange(count), 6)


def _range_text(start: int, end: int, step: int, texts: Any) -> Draw:
    return _sample([(texts[number - 1], number) for number in range(start, end, step) if 0 < number <= len(texts)])


_CHOICES: Values = {
    "sample": _sample,
    "sample_sequential": _sequential,
    "range": lambda start, end, step=1: lambda rng: rng.randrange(start, end, step),
    "range_list": lambda start, end, step=1: list(range(start, end, step)),
    "range_str": _range_text,
    "arange": _arange,
}
"""The drawing functions of the templates: each returns a function of the random number generator."""

_FUNCTIONS: Values = {
    "is_int": lambda value: bool(abs(value - round(value)) < 1e-6),
    "divides": lambda number, divisor: divisor != 0 and number % divisor == 0,
    "ensure_int": round,
    "Fraction": lambda value: str(Fraction(value).limit_denominator()),
    "plural": lambda number, one, other: one if abs(number) == 1 else other,
    "int": int,
    "float": float,
    "round": round,
    "str": str,
    "len": len,
}
