"""Asks for an answer piece by piece: what the rows of the schedule `carry` get in one round."""

from typing import Any

from opd.rollout.carry import CarriedRow, Growth
from opd.rollout.seeds import TRAIN, request_seed


async def piece(
    client: Any,
    row: CarriedRow,
    prompt_ids: list[int],
    sampling_params: dict[str, Any],
    *,
    run_seed: int,
    ends: frozenset[int],
    num_tokens: int,
) -> Growth:
    """Return one piece of a row; the tokens that are there follow the prompt.

    A piece draws by a seed of its own: vLLM's generator begins anew with each request, and would repeat its draws.

    Args:
        client: of the servers.
        ends: tokens that end an answer.
        num_tokens: of the piece, at most; fewer where the row may have no more.

    Raises:
        RuntimeError: the server gave no token, broke off, or does not say whose weights made them.
    """
    num_tokens = min(num_tokens, row.limit - len(row.tokens))
    seed = request_seed(run_seed, TRAIN, row.number, row.index, row.sample, len(row.tokens))
    output = await client.generate(
        f"row-{row.number}",  # the server that has its prefix in a cache
        prompt_ids=[*prompt_ids, *row.tokens],
        sampling_params={**sampling_params, "seed": seed, "max_tokens": num_tokens},
    )
    tokens = list(output.token_ids)
    if output.stop_reason == "aborted":  # as short as a piece that has ended, which it has not
        raise RuntimeError(
            f"the rollout server aborted a piece of row {row.number} at {len(tokens)} of {num_tokens} tokens"
        )
    version = output.extra_fields.get("global_steps")
    num_cached = output.extra_fields.get("num_cached_tokens") or 0
    if not tokens or version is None:
        raise RuntimeError(f"the rollout server gave {len(tokens)} tokens, made by weights of step {version}")
    has_ended = len(tokens) < num_tokens or tokens[-1] in ends
    is_complete = has_ended or len(row.tokens) + len(tokens) >= row.limit
    num_read = len(prompt_ids) + len(row.tokens) - num_cached
    return Growth(
        tokens=tokens, version=int(version), is_complete=is_complete, prompt_ids=list(prompt_ids), num_read=num_read
    )
