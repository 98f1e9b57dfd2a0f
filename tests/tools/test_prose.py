"""The check of the project's language."""

import subprocess

import pytest

import prose

FUNCTION = 'def f():\n    """{}"""\n'
LONG = " ".join(["word"] * 26) + "."
SHORT = " ".join(["word"] * 25) + "."


def rules(path, text):
    return [(line, rule) for line, rule, _, _ in prose.findings(path, text)]


@pytest.mark.parametrize("word", ["What", "Whether", "Which", "Where", "Of", "How"])
@pytest.mark.parametrize(
    "text", ['"""{}"""\n', 'class C:\n    """{}"""\n', "class C:\n    " + FUNCTION.replace("    ", "        ")]
)
def test_a_docstring_does_not_begin_with_a_question_word(word, text):
    assert [rule for _, rule in rules("src/a.py", text.format(f"{word} it needs."))] == ["start"]


@pytest.mark.parametrize(
    "start",
    [
        "The rows",
        "An id",
        "It waits",
        "[T] scores",
        "Rows",
        "Returns rows",
        "Path of a run",
        "`f` of g",
        "3 rows",
        "Reading",
    ],
)
def test_a_function_begins_with_a_verb(start):
    assert rules("src/a.py", FUNCTION.format(f"{start} of a batch.")) == [(2, "start")]


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("The launcher is told.", "The server reports it."),
        ("A longer row is refused.", "The check rejects a longer row."),
        ("The file lies in a folder.", "The file is in a folder."),
        ("X stands for\nthe batch.", "A stand-in replaces it."),
        ("It runs beside the trainer.", "Besides, it runs next to the trainer."),
        ("The marks behind the forward.", "A host behind a TLS proxy."),
        ("The run goes\non afterwards.", "The copy goes on the device."),
        ("The store is away.", "The store is far away."),
        ("For whoever reads it.", "For the reader."),
        ("Take whatever comes.", "Take any row."),
        ("So that nobody waits.", "No process waits."),
        ("The rows and those of a peer.", "Those rows have a peer."),
        ("`None`: all rows.", "None means all rows; none: no row."),
    ],
)
@pytest.mark.parametrize(("path", "form"), [("a.md", "{}"), ("src/a.py", '"""Module.\n\n{}\n"""')])
def test_a_forbidden_word_is_found_with_a_suggestion(bad, good, path, form):
    assert [rule for _, rule in rules(path, form.format(bad))] == ["word"]
    assert rules(path, form.format(good)) == []


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("a.md", "# Title\n\n{}"),
        ("a.md", "| key | text |\n| --- | --- |\n| a | {} |"),
        ("src/a.py", '"""Module.\n\n{}\n"""'),
        ("src/a.py", "x = 1\ny = '#'  # {}"),
        ("src/a.py", "x = 1\n\nparser.add_argument(help='', description=(\"{}\"))"),
        ("src/a.py", "x = 1\n\nProblem(path='', rule=\"{}\")"),
        ("src/a.py", "x = 1\n\nraise ValueError('{}')"),
        ("src/a.py", "x = 1\n\nraise ValueError(f'{{x}}. {}') from None"),
        ("src/a.cu", "int x;\n\n// {}"),
        ("src/a.js", "let x;\n\n/* {} */"),
        ("charts/a/templates/_a.tpl", "x\n\n{{{{- /* {} */ -}}}}"),
        ("charts/a.yaml", "x: 1\n\n# {}"),
        ("Makefile", "a:\n\nb: a ## {}"),
    ],
)
def test_a_sentence_has_at_most_25_words(path, form):
    assert [rule for _, rule in rules(path, form.format(LONG))] == ["length"]
    assert rules(path, form.format(f"{SHORT} {SHORT}")) == []


@pytest.mark.parametrize(
    "text",
    [
        "Use `" + LONG[:-1] + "` in a shell.",
        "Keys " + ", ".join("`key`" for _ in range(30)) + " and `last`.",
        "Run:\n\n```\n" + LONG + "\n" + LONG + "\n```\n\nThen stop.",
        "Run:\n\n    " + SHORT[:-1] + "\n    " + SHORT[:-1] + "\n\nThen stop.",
        "# One heading\n\n- " + SHORT[:-1] + "\n- " + SHORT[:-1] + "\n",
        "| " + SHORT[:-1] + " | " + SHORT[:-1] + " |",
        "See " + " ".join(f"[page](https://example.com/{n}/a)." for n in range(30)),
    ],
)
def test_code_keys_items_and_cells_do_not_make_a_sentence_long(text):
    assert rules("a.md", text) == []


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "good.md").write_text("A sentence.\n")
    (tmp_path / "bad.md").write_text("It lies there.\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    return tmp_path


def test_a_finding_fails_the_check(tree, capsys):
    assert prose.main([], tree) == 1
    assert capsys.readouterr().out == ("bad.md:1: word: lies -> is, is stored, means\nprose: 1 findings\n")
