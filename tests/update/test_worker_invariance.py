"""The update through the real worker: the same global batch gives the same loss and gradient however it is cut."""

import pytest
import torch
from tests.update.exact import (
    DYNAMIC,
    LEFT_TO_THE_PLAN,
    ULYSSES,
    WAYS,
    check,
    check_same,
    cut,
    expected,
    run,
)
from tests.update.models import save_experts, save_model, uneven_rows
from tests.update.workers import Case, row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = uneven_rows()


def _untrained(rows: list[dict]) -> list[dict]:
    return [row | {"mask": [0] * len(row["mask"])} for row in rows]


# The untrained half is the longer one.
HALF_MASKED = uneven_rows(2) + _untrained(uneven_rows(3, seed=9)[1:])
EMPTY_RANK = uneven_rows(4) + _untrained(uneven_rows(4, seed=9))
BYTES_A_TOKEN = 48 * 4  # hidden size and fp32
# Of 40 tokens, where data.max_prompt_length and data.max_response_length are 16.
LONG_ROW = [*ROWS[:-1], row(list(range(1, 25)), list(range(25, 41)))]
MODEL, FSDP = "actor_rollout_ref.model", "actor_rollout_ref.actor.fsdp_config"
CHECKPOINTING = [f"{MODEL}.enable_gradient_checkpointing=True"]
PER_ROW = ["seq-mean-token-mean", "seq-mean-token-sum"]
NO_MEMORY = ["opd.gpu_memory_gib=1e-3"]
PER_TEACHER = "actor_rollout_ref.ref"
WHOLE_ON_EACH = [f"{FSDP}.fsdp_size=1", f"{PER_TEACHER}.fsdp_config.fsdp_size=1"]


CUTS = [(way, "untied") for way in WAYS]
CUTS += [
    (way, name)
    for name in ("tied", "one key head", "experts")
    for way in ((1, "padded"), (2, "8 micro-batches"), (2, "shared sequence"))
]


@pytest.fixture(scope="module")
def cases(pair, tmp_path_factory) -> dict[str, Case]:
    """An update of each pair of models."""
    base = tmp_path_factory.mktemp("models")

    def of_pair(name: str, **options) -> Case:
        student = save_model(base / f"student {name}", hidden=32, layers=2, rows=64, tied=True, seed=3, **options)
        teacher = save_model(base / f"teacher {name}", hidden=48, layers=2, rows=96, tied=True, seed=4, **options)
        return Case(student=student, teacher=teacher, rows=ROWS)

    untied = Case(student=pair["student"], teacher=pair["teacher"], rows=ROWS)
    experts = cut(untied, teacher=save_experts(base / "experts", hidden=48, layers=2, rows=96, seed=2))
    of_pairs = {"tied": of_pair("tied"), "one key head": of_pair("one key head", key_heads=1)}
    return {"untied": untied, "experts": experts} | of_pairs


def _one_rank(case: Case) -> dict[str, Case]:
    by_aggregation = {mode: cut(case, overrides=[f"opd.loss_agg_mode={mode}"]) for mode in PER_ROW}
    on_host = [f"{FSDP}.{part}_offload=True" for part in ("param", "optimizer")]
    long = ["opd.max_length=64", "opd.train_tokens=32", "opd.read_tokens=32"]
    planned = [*LEFT_TO_THE_PLAN, "teacher.offload=auto"]
    return by_aggregation | {
        "gradient checkpointing": cut(case, overrides=CHECKPOINTING),
        "offload": cut(case, overrides=on_host),
        "planned": cut(case, sets=planned),
        "cut by tokens": cut(case, sets=["opd.read_tokens=1", "opd.train_tokens=32"]),
        "a row longer than planned": cut(case, rows=LONG_ROW, sets=long),
        "warm-up": cut(case, sets=["trainer.monitor=false", "actor.num_warmup_steps=2"]),
        "all masked": cut(case, rows=_untrained(ROWS)),
    }  # fmt: skip


def _two_ranks(case: Case) -> dict[str, Case]:
    shared = cut(case, overrides=ULYSSES)
    by_aggregation = {
        f"{mode}{name}": cut(each, micro_batch=size, overrides=[f"opd.loss_agg_mode={mode}"])
        for mode in PER_ROW
        for name, each, size in (("", case, 1), (", shared sequence", shared, 2))
    }
    # Rows are cut elsewhere for the teacher than for the student, and the last ranks' tokens may all be untrained.
    otherwise = f"{PER_TEACHER}.log_prob_micro_batch_size_per_gpu=8"
    return by_aggregation | {
        "empty rank": cut(case, rows=EMPTY_RANK, micro_batch=1),
        "no memory": cut(case, micro_batch=1, overrides=NO_MEMORY),
        "whole on each rank": cut(case, micro_batch=1, overrides=WHOLE_ON_EACH),
        "no memory, trained by tokens": cut(
            case, micro_batch=1, overrides=NO_MEMORY, sets=["opd.train_tokens=100000"]
        ),
        "shared sequence, other cuts": cut(shared, overrides=[*DYNAMIC, *CHECKPOINTING]),
        "shared sequence, teacher cut otherwise": cut(shared, micro_batch=2, overrides=[otherwise]),
        "shared sequence, no exchange": cut(shared, overrides=[f"+{MODEL}.override_config.attn_implementation=eager"]),
        "shared sequence, empty rank": cut(shared, rows=HALF_MASKED, micro_batch=4),
    }  # fmt: skip


def _both(case: Case) -> dict[str, Case]:
    """A loss that is nan on the last rank only: by a row's weight, and by what the teacher answers."""
    weighted = cut(case, rows=[*ROWS[:-1], ROWS[-1] | {"weight": float("nan")}], micro_batch=2)
    return {
        "2 mini-batches": cut(case, mini_batch=4, micro_batch=2),
        "nan weight": weighted,
        "nan weight in the second update": cut(weighted, mini_batch=4),
        "nan from the teacher": cut(case, micro_batch=2, nan_teacher=True),
    }


@pytest.fixture(scope="module")
def runs(cases) -> dict:
    untied = cases["untied"]
    some = {1: _one_rank(untied) | _both(untied), 2: _two_ranks(untied) | _both(untied)}
    of_pairs = {(*way, name): cut(cases[name], **WAYS[way]) for way, name in CUTS}
    four = {(4, "shared sequence"): cut(untied, micro_batch=2, overrides=ULYSSES)}
    return run(
        {(world, name): case for world, by_name in some.items() for name, case in by_name.items()} | of_pairs | four
    )


@pytest.fixture(scope="module")
def alone(runs) -> dict:
    return runs[1, "all", "untied"]


@pytest.fixture(scope="module")
def references(cases) -> dict[str, dict]:
    eager = {"experts": {"experts_implementation": "eager"}}
    return {name: expected(case, **eager.get(name, {})) for name, case in cases.items()}


@pytest.mark.parametrize(("way", "name"), CUTS, ids=str)
def test_cutting_the_batch_does_not_change_loss_or_gradient(runs, references, alone, way, name):
    # The original averages micro-batch means and then ranks (defect 5): uneven rows make that differ.
    check(runs[*way, name], references[name])
    if name == "untied":
        check_same(runs[*way, name], alone)
        # Adam's first update is lr * sign(gradient), 1e-3, but where the gradient is noise: hence the tolerance.
        for key, weight in alone["weights"].items():
            torch.testing.assert_close(runs[*way, name]["weights"][key], weight, rtol=1e-4, atol=5e-5)


SAME = [(1, name) for name in ("gradient checkpointing", "offload", "planned", "cut by tokens")]
SAME += [(2, "shared sequence, other cuts"), (2, "shared sequence, teacher cut otherwise"), (4, "shared sequence")]
SAME += [(2, "no memory"), (2, "no memory, trained by tokens"), (2, "whole on each rank")]


@pytest.mark.parametrize("way", SAME, ids=str)
def test_memory_cuts_of_the_teacher_and_four_ranks_change_nothing(runs, alone, way):
    check_same(runs[way], alone)


@pytest.mark.parametrize("mode", PER_ROW)
@pytest.mark.parametrize("way", [(1, ""), (2, ""), (2, ", shared sequence")], ids=str)
def test_a_loss_per_response_is_a_mean_over_those_with_trained_tokens(runs, cases, mode, way):
    wanted = expected(cases["untied"], mode=mode)
    del wanted["metrics"]["opd/divergence"]  # a mean over tokens in every mode
    check(runs[way[0], f"{mode}{way[1]}"], wanted)
    check_same(runs[way[0], f"{mode}{way[1]}"], runs[1, mode])


def test_a_step_tells_the_rate_of_its_updates_and_without_the_monitor_nothing_of_its_signs(runs, alone):
    warming, usual = runs[1, "warm-up"]["metrics"], alone["metrics"]
    assert warming["opd/loss"] == pytest.approx(usual["opd/loss"], rel=1e-5)
    assert usual["opd/lr_used"] == pytest.approx(1e-3)
    assert (warming["opd/lr_used"], warming["opd/lr"]) == (0.0, pytest.approx(5e-4))
    assert not runs[1, "warm-up"]["has_moved"]
    signs = {"opd/surprise", "opd/teacher_entropy_std", "opd/teacher_prefers_neighbour", "opd/weight_change"}
    assert signs <= usual.keys()
    assert not signs & warming.keys()


def _count(result: dict, name: str) -> int:
    return sum(n for operation, n in result["collectives"].items() if name in operation)


def test_with_memory_an_update_reduces_and_gathers_once_and_without_it_in_every_micro_batch(runs):
    kept, tight = runs[2, "8 micro-batches", "untied"], runs[2, "no memory"]
    by_tokens = runs[2, "no memory, trained by tokens"]  # all rows of a rank are one micro-batch, of the student alone
    assert (kept["choice"]["defer_sync"], kept["choice"]["keep_gathered"]) == (True, True)
    assert (tight["choice"]["defer_sync"], tight["choice"]["keep_gathered"]) == (False, False)
    # Embedding, layers, head and root (final norm); four micro-batches a rank; a gathering is one `_allgather_base_`.
    student_units, teacher_units, num_micro_batches = 2 + 3, 3 + 3, 4
    scored = teacher_units * num_micro_batches
    # Forward and backward gather once each where nothing is kept.
    for result, reduced, gathered in (
        (kept, 1, 1),
        (tight, num_micro_batches, 2 * num_micro_batches),
        (by_tokens, 1, 2),
    ):
        assert _count(result, "reduce_scatter") == student_units * reduced
        assert _count(result, "_allgather_base_") == scored + student_units * gathered


@pytest.mark.parametrize("name", ["empty rank", "shared sequence, empty rank"])
def test_a_rank_without_a_trained_token_neither_hangs_nor_changes_the_mean(runs, cases, name):
    # The original skips an all-padding micro-batch on one rank only, and FSDP's collectives hang (defect 4).
    check(runs[2, name], expected(cut(cases["untied"], rows=HALF_MASKED if "shared" in name else EMPTY_RANK)))
    num_bytes = sum(sum(row["mask"]) for row in (HALF_MASKED if "shared" in name else EMPTY_RANK)) * BYTES_A_TOKEN
    assert runs[2, name]["metrics"]["perf/teacher_cache_mb"] * 2**20 == num_bytes, "one rank has all trained tokens"


def test_hidden_states_are_exchanged_only_where_the_teacher_cut_the_batch_otherwise(runs):
    # Attention exchanges twice a layer: in the teacher's three, and forward and backward in the student's two.
    scored, trained, num_micro_batches = 2 * 3, 2 * 2 * 2, 4
    assert _count(runs[2, "shared sequence", "untied"], "alltoall") == num_micro_batches * (scored + trained)
    # One micro-batch for the teacher, and one exchange of its hidden states for each of the student's.
    otherwise = _count(runs[2, "shared sequence, teacher cut otherwise"], "alltoall")
    assert otherwise == scored + num_micro_batches * (trained + 1)


def test_what_cannot_be_shared_is_refused_before_any_update(runs):
    error = runs[2, "shared sequence, no exchange"]["error"]
    assert "needs attn_implementation varlen or sdpa, got eager" in error


def test_a_rank_caches_the_hidden_states_of_its_own_tokens_only(runs, alone):
    whole = alone["metrics"]["perf/teacher_cache_mb"]
    for case in ((2, "shared sequence", "untied"), (2, "shared sequence, other cuts")):
        assert whole / 2 <= runs[case]["metrics"]["perf/teacher_cache_mb"] < 0.75 * whole


@pytest.mark.parametrize("world", [1, 2])
def test_counts_over_ranks_and_mini_batches_equal_the_hand_count(runs, world):
    # The original reports num_tokens as a rank mean and ignores ppo_mini_batch_size (defects 10 and 14).
    metrics = runs[world, "2 mini-batches"]["metrics"]
    assert metrics["opd/num_tokens"] == sum(sum(row["mask"]) for row in ROWS)
    assert metrics["opd/batch_size"] == sum(any(row["mask"]) for row in ROWS)
    assert (metrics["opd/num_updates"], metrics["opd/skipped_step"]) == (2, 0)


def test_a_batch_without_any_trained_token_is_a_zero_loss_and_a_finite_step(runs):
    metrics = runs[1, "all masked"]["metrics"]
    assert (metrics["opd/loss"], metrics["opd/grad_norm"], metrics["opd/skipped_step"]) == (0, 0, 0)


@pytest.mark.parametrize("case", ["nan weight", "nan from the teacher"])
@pytest.mark.parametrize("world", [1, 2])
def test_an_update_that_is_not_finite_on_one_rank_moves_no_rank_and_is_counted(runs, world, case):
    result = runs[world, case]
    assert not result["has_moved"]
    assert (result["metrics"]["opd/num_updates"], result["metrics"]["opd/skipped"]) == (1, 1)
    assert all(torch.isfinite(weight).all() for weight in result["weights"].values())


@pytest.mark.parametrize("world", [1, 2])
def test_the_finite_update_before_one_that_is_not_is_made(runs, world):
    result = runs[world, "nan weight in the second update"]
    assert result["has_moved"]
    assert (result["metrics"]["opd/num_updates"], result["metrics"]["opd/skipped"]) == (2, 1)
    assert result["metrics"]["opd/grad_norm"] > 0


def test_rows_whose_loss_is_not_finite_are_named_by_their_rank(runs, alone):
    (named,) = runs[1, "nan from the teacher"]["nonfinite_rows"]
    assert 1 in named
    first, second = runs[2, "nan from the teacher"]["nonfinite_rows"]
    assert not first
    assert second
    assert alone["nonfinite_rows"] == [[]]


def test_with_offload_the_backbones_are_never_on_the_device_together(runs):
    """The original skips its teacher's load and offload under one FSDP generation and fails under the other (11)."""
    phases, choice = runs[1, "offload"]["places"], runs[1, "offload"]["choice"]
    assert phases["teacher"] == {"teacher": "device", "student": "offloaded"}
    assert phases["student"] == {"teacher": "offloaded", "student": "device"}
    assert phases["done"] == {"teacher": "offloaded", "student": "offloaded"}
    assert (choice["offload_teacher"], choice["offload_params"], choice["offload_optimizer"]) == (True, True, True)


def test_the_worker_follows_its_plan(runs):
    choice = runs[1, "planned"]["choice"]
    assert (choice["offload_teacher"], choice["offload_params"], choice["offload_optimizer"]) == (False, False, False)
    for places in runs[1, "planned"]["places"].values():
        assert places == {"teacher": "device", "student": "device"}


def test_a_row_longer_than_a_micro_batch_is_one_alone(runs):
    metrics = runs[1, "a row longer than planned"]["metrics"]
    assert metrics["opd/num_tokens"] == sum(sum(row["mask"]) for row in LONG_ROW)


def test_the_teacher_cache_is_one_hidden_state_a_trained_token(alone):
    # The original caches full logits on the host: 304 KB a token, 637 GB a batch (defect 13); prompts included (12).
    metrics = alone["metrics"]
    assert metrics["perf/teacher_cache_mb"] * 2**20 == metrics["opd/num_tokens"] * BYTES_A_TOKEN
    # A CPU's hidden states have nowhere to spill to (tests/gpu has a device with a budget).
    assert metrics["perf/teacher_cache_host_mb"] == 0
