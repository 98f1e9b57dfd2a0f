"""Finding the boxed answer in LaTeX text: the one extraction rule shared by rewards and data preparation."""

import re

# One token at a time: an escaped character (`\{` is no group in TeX) or a brace.
_BRACE_TOKEN = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX_COMMANDS = ("\\boxed", "\\fbox")  # the second counts only where the first never occurs, as in verl's scorer


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` (else the last `\fbox{...}`), or None.

    Braces are balanced and escaped braces are no group. `\boxed 42$` without braces gives the text up to the next
    `$`. A last box that never closes gives None: an answer cut off in mid-box is no answer, even after an earlier
    box. Linear in the text's length.
    """
    for command in _BOX_COMMANDS:
        start = text.rfind(command)
        if start >= 0:
            return _box_content(text, start + len(command))
    return None


def _box_content(text: str, start: int) -> str | None:
    """What follows a box command that ends at `start`."""
    content_start = start
    while content_start < len(text) and text[content_start] in " \t\n":
        content_start += 1
    if content_start < len(text) and text[content_start] == "{":
        return _balanced(text, content_start)
    if content_start == start:  # `\boxedx`: another command
        return None
    return text[content_start:].split("$", 1)[0].strip() or None


def _balanced(text: str, opening: int) -> str | None:
    """The content of the group whose `{` is at `opening`, or None where it never closes."""
    depth = 0
    for token in _BRACE_TOKEN.finditer(text, opening):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : token.start()]
    return None
