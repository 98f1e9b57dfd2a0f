"""The parts of the benchmark: an archive each, a SQLite file each, and beside them one manifest."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from opd_envs.deepplanning.archive import TRAVEL
from opd_envs.deepplanning.layout import Layout
from opd_envs.deepplanning.shopping.checks import SHOPPING
from opd_envs.travel.entries import LANGUAGES

Part = Literal["en", "zh", "shopping_1", "shopping_2", "shopping_3"]
"""Travel by language, shopping by level."""
PARTS: tuple[Part, ...] = get_args(Part)
LEVELS = (1, 2, 3)
SHOPPING_PARTS: Mapping[int, Part] = dict(zip(LEVELS, PARTS[len(LANGUAGES) :], strict=True))
LAYOUTS: Mapping[Part, Layout] = {part: TRAVEL if part in LANGUAGES else SHOPPING for part in PARTS}

TOOLSETS: Mapping[Part, str] = {
    part: f"deepplanning-{part}" if part in LANGUAGES else "deepplanning-shopping-en" for part in PARTS
}
"""`agent.toolset` in the language of the part's queries."""

FOLDER = Path("DeepPlanning")
"""Below the data folder: Qwen-Agent's `benchmark/deepplanning`."""
PUBLISHED_AT = "https://github.com/QwenLM/Qwen-Agent (benchmark/deepplanning) and the data set Qwen/DeepPlanning"
_TRAVEL, _SHOPPING = FOLDER / "travelplanning", FOLDER / "shoppingplanning"
ARCHIVES: Mapping[Part, Path] = {
    **{language: _TRAVEL / f"database/database_{language}.zip" for language in LANGUAGES},
    **{part: _SHOPPING / f"database_zip/database_level{level}.tar.gz" for level, part in SHOPPING_PARTS.items()},
}
QUERY_FILES: Mapping[Part, Path] = {
    **{language: _TRAVEL / f"data/travelplanning_query_{language}.json" for language in LANGUAGES},
    **{part: _SHOPPING / f"data/level_{level}_query_meta.json" for level, part in SHOPPING_PARTS.items()},
}


def part_of(case_id: str) -> Part:
    """The part that a case is of, by its name in a row (`opd_envs.deepplanning.layout.case_name`)."""
    part = case_id.partition("/")[0]
    return part  # type: ignore[return-value]
