"""`python -m opd_envs.deepplanning.prepare`: the benchmark's published queries over its imported database, as rows."""

import argparse

from opd.data import command_line
from opd.data.command_line import SetReport
from opd.data.raw_files import RawFileError
from opd.data.rows import Row
from opd_envs.database_folder import ManifestError, kind_of, read_manifest
from opd_envs.deepplanning.database import Manifest
from opd_envs.deepplanning.parts import FOLDER, PUBLISHED_AT, TOOLSETS, part_of
from opd_envs.deepplanning.queries import Cases, absent_files, travel
from opd_envs.deepplanning.shopping.rows import shopping
from opd_envs.preparing import TRAIN_FILE, Tables, finish, make_parser, val_file

SHOPPING_FILE = "val_shopping.parquet"
EXAMPLE = """\
  python -m opd_envs.deepplanning import --out databases/deepplanning
  python -m opd_envs.deepplanning.prepare --database-dir databases/deepplanning
    reads   data/DeepPlanning/{travelplanning,shoppingplanning}/data/*.json
    writes  data/agent_processed/{train,val_travel_en,val_travel_zh,val_shopping}.parquet: the queries whose case is
            in the database"""
OPTIONS = ("languages", "train_ratio", "seed")


def prepare(arguments: argparse.Namespace) -> None:
    """Read the query files that are there, split the travel queries and write the rows."""
    tables: Tables = {}
    reports = []
    left_out = [f"{path}: no such file" for path in absent_files(arguments.data_dir, arguments.languages)]
    cases = _cases(arguments)
    sets = list(
        travel(
            arguments.data_dir,
            languages=arguments.languages,
            train_ratio=arguments.train_ratio,
            seed=arguments.seed,
            cases=cases,
        )
    )
    num_rows = sum(len(rows) for _, prepared in sets for rows in prepared.rows.values())
    sets += shopping(arguments.data_dir, first_index=num_rows, cases=cases)
    if not sets:
        raise RawFileError(f"{arguments.data_dir / FOLDER}: no query file is there. Get them from {PUBLISHED_AT}")
    for name, prepared in sets:
        validation = SHOPPING_FILE if "shopping" in name else val_file("zh" if name.endswith("zh") else "en")
        num_written = {}
        if any(prepared.rows.values()):
            for split, rows in prepared.rows.items():
                file = TRAIN_FILE if split == "train" else validation
                tables.setdefault(file, []).extend(rows)
                num_written[file] = len(rows)
        else:
            reasons = ", ".join(f"{reason} {number}" for reason, number in prepared.dropped.items())
            left_out.append(f"{name}: none of its queries can be used ({reasons})")
        raw = prepared.raw
        reports.append(SetReport(name, raw.path, len(raw.records), prepared.dropped, num_written, prepared.notes))
    finish(arguments, tables, reports, toolset_of=_toolset_of, options=OPTIONS, left_out=left_out)


def _toolset_of(row: Row) -> str:
    return TOOLSETS[part_of(row["extra_info"]["case_id"])]


def _cases(arguments: argparse.Namespace) -> Cases:
    """Return the cases of the database that --database-dir names."""
    folder = arguments.database_dir
    if folder is None or kind_of(folder) != Manifest.KIND:
        raise RawFileError(
            f"--database-dir {folder or 'is not set'}: DeepPlanning's queries are answered from its own database; import it "
            "with `python -m opd_envs.deepplanning import --out DIR` and name it here"
        )
    try:
        manifest = read_manifest(folder, Manifest)
    except ManifestError as error:
        raise RawFileError(str(error)) from error
    return Cases(manifest, manifest.case_names, folder)


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = make_parser(
        module="opd_envs.deepplanning.prepare",
        description="Prepares DeepPlanning's queries for multi-turn rollouts with its tools.",
        example=EXAMPLE,
    )
    command_line.run(prepare, parser.parse_args(argv))


if __name__ == "__main__":
    main()
