r"""Small raw files in exactly the published layouts: columns, types and quirks are real, the problems are ours.

DAPO has its instruction around every prompt. AIME24 has solutions whose first box is not the answer, in each of the ways seen,
and an answer sheet's leading zeros. MATH-500 has answers in LaTeX, AIME25 one answer with a degree sign.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from opd.data.math_sources import DAPO_PREFIX, DAPO_SUFFIX

DAPO_SCHEMA = pa.schema(
    [
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
    ]
)
DAPO_PROBLEMS = [
    ("What is $1+1$?", "2"),
    ("What is $2+2$?", "4"),
    ("How many primes are below $10$?  ", "4"),
    ("求 $3+4$ 的值。", "7"),
    ("What is $5\\cdot 5$?", "25"),
    ("What is $6^2$?", "36"),
    ("Find the remainder of $100$ modulo $7$.", "2"),
    ("Let $x=3$. Find $x^3$.", "27"),
    ("How many edges has a cube?", "12"),
    ("How many faces has a cube?", "6"),
]

# (number, problem, solution, answer as on the answer sheet): the first five have a first box that is not the answer.
AIME24_PROBLEMS = [
    (60, "A clock problem.", "First $\\boxed{30}$ minutes, then the rest, hence $\\boxed{204}$.", "204"),
    (61, "A lattice problem.", "The lattice has $\\boxed{(3,4)}$ as corner.\n\nThe count is $\\boxed{025}$.", "025"),
    (62, "A torus problem.", "So $\\frac{m}{n}=\\boxed{\\frac{99}{28}}$ and $m+n=\\boxed{127}$.", "127"),
    (63, "A log problem.", "Answer choices aside, $\\boxed{\\textbf{(A)}}$ gives $\\boxed{\\textbf{(073)}}$.", "073"),
    (64, "A residue problem.", "Case 1: $\\boxed{x=11}$. Case 2 wins: $\\boxed{p+q=\\text{902}}$.", "902"),
    (65, "A plain problem.", "Clearly $\\boxed{110}$.", "110"),
    (66, "A problem with a box around zero.", "It is $\\boxed{0}$.", "000"),
]

AIME25_PROBLEMS = [
    {"problem": "Find the sum of all bases.", "answer": "70", "id": "0"},
    {"problem": "Find the angle.", "answer": "336^\\circ", "id": "1"},
    {"problem": "Find the remainder.", "answer": "016", "id": "2"},
]

MATH500_PROBLEMS = [
    {
        "problem": "Convert the point $(0,3)$ to polar coordinates.",
        "solution": "We have $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}$.",
        "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "subject": "Precalculus",
        "level": 2,
        "unique_id": "test/precalculus/807.json",
    },
    {
        "problem": "Name her.\u2028",
        "solution": "$\\boxed{\\text{Evelyn}}$",
        "answer": "\\text{Evelyn}",
        "subject": "Prealgebra",
        "level": 2,
        "unique_id": "test/prealgebra/1.json",
    },
]


def dapo_rows() -> list[dict[str, Any]]:
    """YouJiacheng/DAPO-Math-17k-dedup."""
    return [
        {
            "prompt": [{"content": f"{DAPO_PREFIX}{question}{DAPO_SUFFIX}", "role": "user"}],
            "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        }
        for question, answer in DAPO_PROBLEMS
    ]


def aime24_lower_case_rows() -> list[dict[str, Any]]:
    """HuggingFaceH4/aime_2024."""
    return [
        {"id": number, "problem": problem, "solution": solution, "answer": answer, "url": "https://x", "year": "2024"}
        for number, problem, solution, answer in AIME24_PROBLEMS
    ]


def aime24_capitalised_rows() -> list[dict[str, Any]]:
    """Maxwell-Jia/AIME_2024: capitalised columns, the answer as a number."""
    return [
        {"ID": f"2024-I-{number}", "Problem": problem, "Solution": solution, "Answer": int(answer)}
        for number, problem, solution, answer in AIME24_PROBLEMS
    ]


def aime24_solution_only_rows() -> list[dict[str, Any]]:
    """math-ai/aime24: the answer is only in the solution's last box."""
    return [
        {"id": number, "problem": problem, "solution": solution, "url": "https://x"}
        for number, problem, solution, _ in AIME24_PROBLEMS
    ]


def write_parquet(path: Path, rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_raw(data_dir: Path, *, aime24: list[dict[str, Any]] | None = None) -> Path:
    """All four raw files below `data_dir`; AIME24 in its lower-case layout unless its rows are given."""
    write_parquet(data_dir / "DAPO-Math-17k-dedup/distinct-prompts-with-rewards.parquet", dapo_rows(), DAPO_SCHEMA)
    write_parquet(data_dir / "AIME_2024/aime_2024_problems.parquet", aime24 or aime24_lower_case_rows())
    write_json_lines(data_dir / "AIME_2025/train.jsonl", AIME25_PROBLEMS)
    write_json_lines(data_dir / "MATH-500/test.jsonl", MATH500_PROBLEMS)
    return data_dir
