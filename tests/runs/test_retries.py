"""The table of what is retried: the README's is the code's, and it names the errors that exist."""

from __future__ import annotations

import re
from pathlib import Path

from opd import errors
from opd.runs import retries


def test_the_readme_shows_the_table_of_the_code() -> None:
    readme = Path(retries.__file__).with_name("README.md").read_text()
    assert retries.table() in readme, "python -m opd.runs.retries prints the table"


def test_every_error_of_the_run_directory_that_a_run_ends_with_is_in_the_table() -> None:
    named = {name for row in retries.ROWS for name in re.findall(r"\b[A-Z]\w+\b", f"{row.error} {row.then}")}
    bases = {"RunError", "StoreError", "CheckpointError"}
    within = {"AlreadyExists", "CorruptRecord", "RunFinished", "RunFatal", "IncompleteCheckpoint", "UnsafePath"}
    existing = {name for name, value in vars(errors).items() if isinstance(value, type)}
    errors_of_a_run = {name for name in existing if issubclass(getattr(errors, name), errors.RunError)} - bases - within
    assert errors_of_a_run <= named
