"""From the published archives to a database folder: what they hold is checked, and written whole or not at all."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from opd.envs.database_folder import new_folder, record_of, write_manifest
from opd.envs.deepplanning.archive import Archive
from opd.envs.deepplanning.cases import Rows, check_named, read_cases
from opd.envs.deepplanning.database import (
    DATABASE_FILES,
    FORMAT_VERSION,
    Manifest,
    create_statements,
    insert_statement,
)
from opd.envs.deepplanning.layout import TABLES
from opd.envs.deepplanning.surprises import Surprises
from opd.envs.sqlite_file import written
from opd.envs.travel.data.deepplanning import named_entries, read_json
from opd.envs.travel.entries import Language
from opd.store.durable import hash_file

NamedEntries = Mapping[str, tuple[tuple[str, str], ...]]
"""By query id: (field of a constraint, name) of every entry that the published constraints name."""


class ImportRefused(ValueError):
    """An archive has faults; `Surprises` says which."""


def read_named_entries(path: Path) -> NamedEntries:
    """What the queries of a published file name.

    Raises:
        RawFileError: missing, or not in the published layout.
    """
    raw = read_json(path)
    named: dict[str, tuple[tuple[str, str], ...]] = {}
    for row, record in enumerate(raw.records):
        try:
            constraints = record["meta_info"]["hard_constraints"].values()
            named[str(record["id"])] = tuple(
                entry
                for constraint in constraints
                if isinstance(constraint, dict)
                for entry in named_entries(constraint)
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise raw.error(row, "meta_info", f"must have hard_constraints ({error})") from error
    return named


def checked_cases(
    archive: Archive, queries: NamedEntries | None, surprises: Surprises
) -> Iterator[tuple[str, dict[str, Rows]]]:
    """`read_cases`, compared with the queries where they are at hand."""
    for case, rows in read_cases(archive, surprises):
        if queries is not None:
            if case not in queries:
                surprises.note("archive: a case that no query is of", f"id_{case}")
            check_named(case, rows, queries.get(case, ()), surprises)
        yield case, rows
    for missing in sorted(set(queries or ()) - set(archive.cases)):
        surprises.note("archive: a query without a case", f"id_{missing}")


def import_archives(
    archives: Mapping[Language, Path],
    folder: Path,
    *,
    queries: Mapping[Language, NamedEntries | None],
    surprises: Mapping[Language, Surprises],
    replace: bool = False,
) -> Manifest:
    """Writes a database folder of the archives, the same bytes for the same archives.

    Args:
        archives: zip file by language; at least one.
        folder: must not hold anything but, with `replace`, a database.
        queries: of each language, or None where they are not at hand: compared, not stored.
        surprises: of each language; filled.
        replace: see `new_folder`.

    Raises:
        ArchiveError: see `Archive`.
        ImportRefused: an archive has faults.
        FileExistsError: see `new_folder`.
    """
    num_rows: Counter[str] = Counter()
    cases: dict[Language, tuple[str, ...]] = {}
    with new_folder(folder, replace=replace) as scratch:
        for language, path in archives.items():
            with Archive(path, surprises[language]) as archive:
                found = checked_cases(archive, queries[language], surprises[language])
                num_rows.update(_write(scratch / DATABASE_FILES[language], language, found))
                cases[language] = tuple(archive.cases)
        if any(surprises[language].num_faults for language in archives):
            raise ImportRefused("the archives have faults: nothing was written")
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            num_rows=dict(num_rows),
            files={DATABASE_FILES[language]: record_of(scratch / DATABASE_FILES[language]) for language in archives},
            archives={language: hash_file(path)[1] for language, path in archives.items()},
            cases=cases,
            num_notes={language: surprises[language].num_notes for language in archives},
        )
        write_manifest(scratch, manifest)
    return manifest


def _write(path: Path, language: Language, cases: Iterable[tuple[str, dict[str, Rows]]]) -> Counter[str]:
    num_rows: Counter[str] = Counter()
    with written(path, create_statements()) as connection:
        for case, rows in cases:
            for table in TABLES:
                values = ((case, line, *row.values()) for line, row in rows[table.name])
                connection.executemany(insert_statement(table), values)
                num_rows[f"{language}.{table.name}"] += len(rows[table.name])
    return num_rows
