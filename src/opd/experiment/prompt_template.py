"""Template of a teacher's own prompt (`teacher.prompt`): a text with `{NAME}` in it, filled in for each row."""

import re
from collections.abc import Callable

PROMPT = "prompt"  # the row's last user message; every other name is a column, or `COLUMN.FIELD`
_BRACES = re.compile(r"(\{\{|\}\})|\{([^][{}:!]*)\}|[{}]")  # a brace that is text, a name in braces, a brace by itself


def names_in(template: str) -> list[str]:
    """Return the names in a template, each once, in their order; ValueError for a text that is no template."""
    names = [match[2] or "" for match in _BRACES.finditer(template) if not match[1]]
    if not all(map(str.strip, names)):
        words = f"braces hold {{{PROMPT}}} or the name of a column, and a brace that is text is written twice"
        raise ValueError(f"{words} ({{{{ }}}})")
    return list(dict.fromkeys(names))


def checked(template: str) -> str:
    """Return the template as it is; ValueError for a text that is none."""
    names_in(template)
    return template


def filled(template: str, value_of: Callable[[str], str]) -> str:
    """Return the text with a value in the place of each name; braces in a value are text."""
    return _BRACES.sub(lambda match: value_of(match[2]) if match[2] else match[0][0], template)
