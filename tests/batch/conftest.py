"""The same rows in every layout that a rollout batch arrives in."""

import pytest
import torch

PAD = 0


def nested(rows, layout=torch.jagged):
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=torch.int64) for row in rows], layout=layout)


def nested_batch(rows, layout=torch.jagged):
    """As verl's V1 workers see it. `rows`: (prompt ids, response ids, response mask) each."""
    prompts, responses, masks = (list(column) for column in zip(*rows, strict=True))
    return {
        "prompts": nested(prompts, layout),
        "responses": nested(responses, layout),
        "response_mask": nested(masks, layout),
        "input_ids": nested([p + r for p, r in zip(prompts, responses, strict=True)], layout),
    }


def padded_batch(rows, extra=0):
    """As verl's DataProto holds it: prompts padded on the left, responses on the right."""
    width_p = max(len(p) for p, _, _ in rows) + extra
    width_r = max(len(r) for _, r, _ in rows) + extra

    def left(values, width):
        return [PAD] * (width - len(values)) + list(values)

    def right(values, width):
        return list(values) + [PAD] * (width - len(values))

    columns = {
        "prompts": [left(p, width_p) for p, _, _ in rows],
        "responses": [right(r, width_r) for _, r, _ in rows],
        "response_mask": [right(m, width_r) for _, _, m in rows],
        "attention_mask": [left([1] * len(p), width_p) + right([1] * len(r), width_r) for p, r, _ in rows],
        "input_ids": [left(p, width_p) + right(r, width_r) for p, r, _ in rows],
    }
    return {name: torch.tensor(values, dtype=torch.int64) for name, values in columns.items()}


# Token 0, the padding id, also occurs as a real token; row 1 is multi-turn: two tool tokens between sampled ones.
ROWS = [
    ([11, 0, 13], [21, 22, 0], [1, 1, 1]),
    ([14], [23, 24, 25, 26, 27], [1, 0, 0, 1, 1]),
    ([15, 16, 17, 18], [28], [1]),
]


@pytest.fixture
def rows():
    return [tuple(list(part) for part in row) for row in ROWS]


@pytest.fixture(params=["jagged", "strided", "padded", "padded with slack"])
def batch(request, rows):
    """The fixture's rows in each layout."""
    if request.param.startswith("padded"):
        return padded_batch(rows, extra=2 if "slack" in request.param else 0)
    return nested_batch(rows, getattr(torch, request.param))


@pytest.fixture(scope="session")
def make_nested():
    return nested_batch


@pytest.fixture(scope="session")
def make_padded():
    return padded_batch
