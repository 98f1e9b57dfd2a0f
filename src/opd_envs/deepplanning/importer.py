"""From the published archives to a database folder: what they hold is checked, and written whole or not at all."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from opd.store.durable import hash_file
from opd_envs.database_folder import new_folder, record_of, write_manifest, written
from opd_envs.deepplanning.archive import Archive, read_cases
from opd_envs.deepplanning.database import (
    DATABASE_FILES,
    FORMAT_VERSION,
    Manifest,
    create_statements,
    insert_statement,
)
from opd_envs.deepplanning.layout import Surprises
from opd_envs.deepplanning.parts import LAYOUTS, Part
from opd_envs.deepplanning.queries import named_entries, read_json, text_of
from opd_envs.deepplanning.readers import Rows
from opd_envs.deepplanning.shopping.checks import ASKED_QUERY
from opd_envs.travel.entries import LANGUAGES

Asked = Mapping[str, tuple[tuple[str, str], ...]]
"""By query id, what its case is compared with (`Layout.check_asked`): (field of a constraint, name) of every entry that the
published constraints of a trip name; the text of a shopping query."""


class ImportRefused(ValueError):
    """An archive has faults; `Surprises` says which."""


def read_asked(path: Path, part: Part) -> Asked:
    """What the queries of a published file say of their cases.

    Raises:
        RawFileError: missing, or not in the published layout.
    """
    raw = read_json(path)
    if part not in LANGUAGES:
        return {
            text_of(raw, row, "id"): ((ASKED_QUERY, text_of(raw, row, ASKED_QUERY)),) for row in range(len(raw.records))
        }
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
    archive: Archive, queries: Asked | None, surprises: Surprises
) -> Iterator[tuple[str, dict[str, Rows]]]:
    """`read_cases`, compared with the queries where they are at hand."""
    for case, rows in read_cases(archive, surprises):
        if queries is not None:
            where = archive.layout.folder(case)
            if case not in queries:
                surprises.note("archive: a case that no query is of", where)
            archive.layout.check_asked(where, rows, queries.get(case, ()), surprises)
        yield case, rows
    for missing in sorted(set(queries or ()) - set(archive.cases)):
        surprises.note("archive: a query without a case", archive.layout.folder(missing))


def import_archives(
    archives: Mapping[Part, Path],
    folder: Path,
    *,
    queries: Mapping[Part, Asked | None],
    surprises: Mapping[Part, Surprises],
    replace: bool = False,
) -> Manifest:
    """Writes a database folder of the archives, the same bytes for the same archives.

    Args:
        archives: file by part; at least one.
        folder: must not hold anything but, with `replace`, a database.
        queries: of each part, or None where they are not at hand: compared, not stored.
        surprises: of each part; filled.
        replace: see `new_folder`.

    Raises:
        ArchiveError: see `Archive`.
        ImportRefused: an archive has faults.
        FileExistsError: see `new_folder`.
    """
    num_rows: Counter[str] = Counter()
    cases: dict[Part, tuple[str, ...]] = {}
    with new_folder(folder, replace=replace) as scratch:
        for part, path in archives.items():
            with Archive(path, LAYOUTS[part], surprises[part]) as archive:
                found = checked_cases(archive, queries[part], surprises[part])
                num_rows.update(_write(scratch / DATABASE_FILES[part], part, found))
                cases[part] = tuple(archive.cases)
        if any(surprises[part].num_faults for part in archives):
            raise ImportRefused("the archives have faults: nothing was written")
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            num_rows=dict(num_rows),
            files={DATABASE_FILES[part]: record_of(scratch / DATABASE_FILES[part]) for part in archives},
            archives={part: hash_file(path)[1] for part, path in archives.items()},
            cases=cases,
            num_notes={part: surprises[part].num_notes for part in archives},
        )
        write_manifest(scratch, manifest)
    return manifest


def _write(path: Path, part: Part, cases: Iterable[tuple[str, dict[str, Rows]]]) -> Counter[str]:
    num_rows: Counter[str] = Counter()
    tables = LAYOUTS[part].tables
    with written(path, create_statements(tables)) as connection:
        for case, rows in cases:
            for table in tables:
                values = ((case, line, *row.values()) for line, row in rows[table.name])
                connection.executemany(insert_statement(table), values)
                num_rows[f"{part}.{table.name}"] += len(rows[table.name])
    return num_rows
