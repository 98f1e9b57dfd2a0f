"""Two models small enough to count by hand, and a job of theirs."""

from opd.memory.job import Job
from opd.shapes import ModelShape

# A layer: attention 2 x 8 x (8 + 8), feed-forward 3 x 8 x 16, norms 2 x 8 = 656. In all 2 x 656 + 100 x 8 + 8 = 2120.
STUDENT = ModelShape(
    vocab_rows=100, hidden=8, layers=2, intermediate=16, num_heads=2, num_kv_heads=2, head_dim=4, tied=True
)
# A layer: 2 x 16 x 32 + 3 x 16 x 32 + 32 = 2592. In all 4 x 2592 + 2 x 1600 + 16 = 13584.
TEACHER = ModelShape(
    vocab_rows=100, hidden=16, layers=4, intermediate=32, num_heads=4, num_kv_heads=4, head_dim=4, tied=False
)


def job(**changes) -> Job:
    """16 rows of at most 20 tokens, 10 of them answered; micro-batches of 2 rows (student) and 4 (teacher)."""
    facts = {
        "student": STUDENT,
        "teachers": ((TEACHER, 2),),
        "num_ranks": 1,
        "row_tokens": 20,
        "response_tokens": 10,
        "rows_per_step": 16,
        "mini_rows": 8,
        "train_tokens": 40,
        "score_tokens": 80,
        "teacher_row_tokens": 20,
        "rollout_share": 0.0,
        "checkpointing": True,
        "workspace_bytes": 5000,
    }
    return Job(**(facts | changes))
