"""Check of the project's language: docstrings, comments, option texts, errors and Markdown.

`python tools/prose.py [FILE ...]` checks these files, or all tracked ones.
"""

import argparse
import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Finding = tuple[int, str, str, str]  # line, rule, text, suggestion

# Files that programs write: by name, or by a sentence in the text.
WRITTEN = re.compile(r"(^|/)(CHANGELOG\.md|\w*RESULTS\.md|ROUNDS\.md|uv\.lock|[\w.-]+\.min\.(js|css))$")
MARK = re.compile(r"\bGenerated from\s.?opd\.experiment|^(Written|Made) by (the run|`(make|python))", re.M)
NOUN = re.compile(r"(?!(?:What|Whether|Which|Where|Of|How)\b)")
VERB = re.compile(
    rf"{NOUN.pattern}(?!(?!(?:Bring|String|Ping|Ring|Embed|\w*eed|Mention)\b)\w+(?:[^s]s|ing|ed|[^i]tion|ity|ness)\b"
    r"|\w+ (?:of|is|are|has)\b|(?:After|All|Also|An?|Another|Any|Around|As|At|Before|Behind|Between|Both|By|Each|Every"
    r"|Everything|False|For|From|Half|If|In|It|Length|Less|Loss|Mean|Memory|More|New|No|Node|None|Not|Nothing|On|Once"
    r"|One|Only|Optimizer|Other|Our|Own|Per|Row|Same|Size|Some|Something|Text|That|The|Their|There|These|This|Those|To"
    r"|Token|Too|True|Two|Under|Until|Up|Value|When|While|Who|Whose|Why|Will|With|Within|Without)\b)"
    r"[A-Z][a-z]+(?:-[a-z]+)*(?=[\s,;:.]|$)"
)
WORDS = {
    r"told|(?:is|are|was|were|be|been|being) refused": "name the actor: the server reports, the check rejects",
    r"li(?:e|es|ed|ying)|lay|lain|stands?(?!-)|stood": "is, is stored, means",
    r"beside": "next to, during",
    r"behind(?! (?:an?|the|its) (?:[\w-]+ )?(?:proxy|firewall|gateway|load balancer))": "after, below",
    r"(?:go|goes|going|gone|went) on(?! (?:an?|the|its|each|every)\b)": "continues",
    r"(?:is|are|was|were|be|been|stays?) away": "is unreachable",
    r"whatever|whichever": "any, every",
    r"whoever|whomever|(?:no|every|any|some)body": "name the actor: the user, no process",
    r"(?:that|those) of": "repeat the noun",
    r"(?-i:None:)": "None means ...",
}
WORD = re.compile(rf"\b(?:{'|'.join(f'({word})' for word in WORDS)})(?!\w)".replace(" ", r"\s+"), re.I)
# Comments by kind of file. Python's strings are matched, too, so that no # in them begins a comment.
QUOTED, LONG = r'"(?:\\.|[^"\\\n])*"', r'"""(?:\\.|[^\\])*?"""'
STRING = f"{LONG}|{QUOTED}|" + f"{LONG}|{QUOTED}".replace('"', "'")
OPTION = rf"\b(?:description|help|rule|fix)=\(?\s*f?({QUOTED}(?:\s+f?{QUOTED})*)"
SLASH = r"/\*+(.*?)\*/|^[ \t]*//([^\n]*(?:\n[ \t]*//[^\n]*)*)|(?<=\s)//([^\n]*)"
HASH = SLASH[SLASH.index("|") + 1 :].replace("//", "#+")
KINDS = {
    rf"{OPTION}|{STRING}|{HASH}": "py",
    rf"\{{\{{-?\s*/\*(.*?)\*/|{HASH}": "yaml toml tpl sh Makefile Dockerfile",
    rf"\{{#(.*?)#\}}|{SLASH}": "cu cuh js css go j2",
    r"\A(.*)\Z": "md",
}
TEXTS = {kind: re.compile(text, re.S | re.M) for text, kinds in KINDS.items() for kind in kinds.split()}
# Code, a URL and a list of keys are one word. A sentence ends at a full stop, a blank line, an item or before `key: `.
CODE = re.compile(r"^[ \t]*```.*?^[ \t]*```|(`+)[^`\n]+\n?[^`\n]*\1(?:'s)?|https?://[^\s)]+", re.S | re.M)
KEYS = re.compile(r"X(?:(?:,|,? and|,? or|,? to)\s+X)+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# Rows of a table, indented lines after a blank line or a colon: each cell and line ends a sentence.
LINES = re.compile(r"^\|[^\n]*|(?:(?<=\n)\n  |(?<=:)(?<!Args:|utes:|urns:|ises:)\n)(?:  [^\n]*(?:\n|\Z))+", re.M)
END = re.compile(r"(?<!e\.g|i\.e)[.!?]+[\"')\]*_]*(?=\s|$)|\n[ \t]*(?=\n|(?:[-*+>#]+|\d+[.)]) |[\w.\[\]]+: )|\Z")


def _one_word(match: re.Match[str]) -> str:
    return ("None" if match[0] == "`None`" else "X") + "\n" * match[0].count("\n")


def _sentences(line: int, text: str) -> Iterator[Finding]:
    """Check words and lengths in a text that begins at `line`."""
    text = KEYS.sub(_one_word, LINK.sub(r"\1", CODE.sub(_one_word, text)))
    text = LINES.sub(lambda match: re.sub(r"\||(?=\n)", " . ", match[0]), text)
    for match in WORD.finditer(text):
        suggestion = [*WORDS.values()][(match.lastindex or 1) - 1]
        yield line + text.count("\n", 0, match.start()), "word", " ".join(match[0].split()), suggestion
    start = 0
    for end in END.finditer(text):
        words = text[start : end.start()].split()
        if len(words) > 25 and len(words := [word for word in words if re.search(r"\w", word)]) > 25:
            quote, at = " ".join(words[:8]).strip('"'), text.index(words[0], start)
            yield line + text.count("\n", 0, at), "length", f"{quote} ...", f"{len(words)} words: split it, at most 25"
        start = end.end()


def _docstrings(path: str, nodes: Sequence[ast.AST]) -> Iterator[Finding]:
    """Check the docstrings of `nodes` and below."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            begin, decorators = " ".join(text.split()[:6]), map(ast.unparse, getattr(node, "decorator_list", ()))
            is_noun = isinstance(node, ast.Module | ast.ClassDef) or any("property" in name for name in decorators)
            hint = "begin with a noun" if is_noun else 'begin with a verb: "Return ..."'
            if text and not (NOUN if is_noun or path.startswith("tests/") else VERB).match(begin):
                yield node.body[0].lineno, "start", begin, hint
            yield from _sentences(node.body[0].lineno if text else 1, text)
        yield from _docstrings(path, [*getattr(node, "body", []), *getattr(node, "orelse", [])])


def _errors(tree: ast.AST) -> Iterator[Finding]:
    """Check the texts of each `raise`; what an f-string fills in is one word."""
    for error in (node for node in ast.walk(tree) if isinstance(node, ast.Raise)):
        pieces = {id(piece) for node in ast.walk(error) if isinstance(node, ast.JoinedStr) for piece in ast.walk(node)}
        for node in ast.walk(error):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "") if isinstance(part, ast.Constant) else "X" for part in node.values]
                yield from _sentences(node.lineno, "".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
                yield from _sentences(node.lineno, node.value)


def findings(path: str, text: str) -> Iterator[Finding]:
    """Check one file; a file that a program writes has no findings."""
    kind = re.split(r"[./]", path)[-1]
    if not WRITTEN.search(path) and (kind == "py" or not MARK.search(text)):
        for match in TEXTS[kind].finditer(text):
            if group := match.lastindex:
                prose = match[group].lstrip()
                line = 1 + text.count("\n", 0, match.end(group) - len(prose))
                yield from _sentences(line, inspect.cleandoc(re.sub(r"(?m)^[ \t]*(?:#+|//+) ?", "", prose)))
        tree = ast.parse(text if kind == "py" else "")
        yield from _docstrings(path, [tree])
        yield from _errors(tree)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python tools/prose.py", description=__doc__)
    parser.add_argument("files", nargs="*", help="files to check, from the root; without any: all tracked files")
    args = parser.parse_args(arguments)
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    files = [path for path in args.files or listing.split("\0") if re.split(r"[./]", path)[-1] in TEXTS]
    errors = [
        f"{path}:{line}: {rule}: {text} -> {suggestion}"
        for path in sorted(files)
        if (root / path).is_file()
        for line, rule, text, suggestion in findings(path, (root / path).read_text())
    ]
    print(*errors, f"prose: {len(errors)} findings", sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
