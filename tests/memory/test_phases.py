"""Bytes of each part in each phase, against counts by hand for two tiny models (see `jobs.py` for their sizes)."""

from dataclasses import replace

from tests.memory.jobs import STUDENT, TEACHER, job

from opd.memory.phases import ASLEEP_BYTES, RESERVE_BYTES, SYNC_BYTES, Choice, phases_of

RESIDENT = Choice(
    offload_teacher=False,
    offload_params=False,
    offload_optimizer=False,
    cache_bytes=5120,
    checkpointing=True,
    activation_share=1.0,
    score_tokens=80,
    train_tokens=40,
)
OFFLOADED = replace(RESIDENT, offload_teacher=True, offload_params=True, offload_optimizer=True)


def parts(job, choice):
    return {phase.name: {**phase.parts, **phase.either} for phase in phases_of(job, choice)}


def test_what_rests_on_the_device_while_the_server_samples():
    found = parts(job(device_bytes=10**9, rollout_share=0.5), RESIDENT)["rollout"]
    assert found == {
        "reserve": RESERVE_BYTES,
        "teacher weights": 2 * 13584,  # bf16
        "student weights": 4 * 2120,  # fp32
        "optimizer moments": 8 * 2120,
        "rollout server": 500_000_000,
    }
    assert parts(job(), OFFLOADED)["rollout"] == {"reserve": RESERVE_BYTES}


def test_the_teachers_phase_loads_it_and_nothing_of_the_student():
    assert parts(job(), OFFLOADED)["teacher"] == {
        "reserve": RESERVE_BYTES,
        "teacher weights": 2 * 13584,
        "gathered weights": 2 * (2 * 2592 + 1600),
        # the stream's, and the larger of attention's (2 x 16 + 2 x 16) x 2 + 4 x 16 and 3 x 32 x 2
        "activations": 80 * (16 * 8 + max(192, 192)),
        "hidden states": 5120,
    }


def test_the_students_phase_counts_weights_moments_gradients_head_and_activations():
    layer = 40 * (
        16 * 6 + 2 * (2 * 8 + 4 * 8 + 4 * 16)
    )  # tokens x (norms, what products, attention and feed-forward read)
    assert parts(job(), OFFLOADED)["student"] == {
        "reserve": RESERVE_BYTES,
        "student weights": 4 * 2120,
        "optimizer moments": 8 * 2120,
        "gradients": 4 * 2120 + 4 * (2 * 656 + 800),
        "gathered weights": 2 * (2 * 656 + 800),
        "activations": 40 * 2 * 2 * 8,  # a layer's input, bf16, two layers
        "teacher head": 2 * 1600,
        "hidden states": 5120,
        "head gradient": 4 * 800,
        "logits": 5000 + 20 * (2 * 2 * 8 + 2 * 16),
        "layer in backward": layer + 40 * (8 * 8 + max(2 * 32 + 32, 96)),
    }


def test_a_compiled_layer_keeps_what_its_products_and_norms_read():
    choice = replace(RESIDENT, checkpointing=False, activation_share=0.5)
    found = parts(job(compiled=True), choice)["student"]
    # Hidden states four times, queries, keys, values and the attention's output, three tensors of the feed-forward.
    assert found["activations"] == 40 * 2 * (4 * 8 + 4 * 8 + 3 * 16) * 2 // 2
    assert found["reserve"] == RESERVE_BYTES + found["activations"] // 16


def test_one_sum_and_one_gathering_an_update_cost_the_whole_model_unsharded():
    choice = replace(OFFLOADED, defer_sync=True, keep_gathered=True)
    assert parts(job(num_ranks=4), choice)["student"]["gradients"] == 4 * 2120 + 2120
    assert parts(job(num_ranks=4), choice)["student"]["gathered weights"] == 2 * 2120
    # A lone rank's sums are what they become: never there twice, but for two layers and the head on their way.
    assert parts(job(), choice)["student"]["gradients"] == 4 * 2120 + 4 * (2 * 656 + 800)


def test_ranks_that_share_sequences_have_their_share():
    shared = parts(job(num_ranks=2, sequence_ranks=2), OFFLOADED)
    assert shared["student"]["activations"] == 20 * 2 * 2 * 8
    assert job(sequence_ranks=2).hidden_bytes == 16 * 10 * 16


def test_a_sleeping_server_leaves_its_context_and_wakes_up_with_its_weights_first():
    found = parts(job(device_bytes=10**9, rollout_share=0.5), OFFLOADED)
    assert found["student"]["rollout server"] == found["teacher"]["rollout server"] == ASLEEP_BYTES
    assert found["weight sync"]["rollout server"] == ASLEEP_BYTES + 2 * 2120 + SYNC_BYTES
    awake = parts(job(device_bytes=10**9, rollout_share=0.5, rollout_sleeps=False), OFFLOADED)
    assert awake["student"]["rollout server"] == 500_000_000


# A layer: 2 x 8 x (8 + 8) + 3 x 8 x 16 + 16 = 656. In all 656 + 100 x 8 + 8 = 1464, in fp32.
OTHER = replace(STUDENT, layers=1)


def test_a_lora_student_has_gradients_and_moments_of_its_adapters_only():
    adapted = job(adapter_params=100)
    student, optimizer = (parts(adapted, RESIDENT)[name] for name in ("student", "optimizer step"))
    assert student["student weights"] == 2 * 2120 + 4 * 100  # frozen in bf16, adapters in fp32
    assert student["optimizer moments"] == 8 * 100
    assert student["gradients"] == 4 * 100 + 4 * 100  # of two layers of two, on their way
    assert "head gradient" not in student
    assert optimizer["gradients"] == optimizer["AdamW's temporaries"] == 4 * 100
    # No gradient of a norm's weight reads the norm's result before it: 2 x 8 entries of two bytes less, in each of two layers.
    kept = [parts(made, replace(RESIDENT, checkpointing=False))["student"]["activations"] for made in (job(), adapted)]
    assert kept[0] - kept[1] == 40 * 2 * 2 * 16
    deferred = replace(OFFLOADED, defer_sync=True, keep_gathered=True)
    found = parts(job(adapter_params=100, num_ranks=4), deferred)["student"]
    assert found["gradients"] == 4 * 100 + 100
    assert found["gathered weights"] == 2 * (2120 + 100)


def test_without_a_teacher_and_a_server_a_step_is_two_phases():
    student, optimizer = phases_of(job(teachers=(), rollout_share=None), replace(RESIDENT, cache_bytes=0))
    assert (student.name, optimizer.name) == ("student", "optimizer step")
    assert student.either["logits"] == 5000 + 20 * 2 * 2 * 8  # hidden states of 20 trained tokens and their gradient
    assert student.parts["head gradient"] == 4 * 800
    assert not {"teacher head", "teacher weights", "hidden states", "rollout server"} & student.parts.keys()
    assert optimizer.parts["gradients"] == 4 * 2120


def test_of_several_teachers_all_rest_one_reads_and_every_head_stays():
    two = job(teachers=((TEACHER, 2), (OTHER, 4)))
    assert two.hidden_bytes == job().hidden_bytes, "the widest one's, as if all rows were its own"
    both = 2 * 13584 + 4 * 1464
    for phase in ("rollout", "teacher", "student"):
        assert parts(two, RESIDENT)[phase]["teacher weights"] == both
    alone, found = parts(job(), OFFLOADED), parts(two, OFFLOADED)
    assert found["teacher"] == alone["teacher"], "the larger one's"
    two_ranks = parts(replace(two, num_ranks=2), OFFLOADED)["teacher"]
    assert two_ranks["teacher weights"] == 13584 + 2 * 1600, "a share, and the head that is gathered of it"
    assert found["student"]["teacher head"] == 2 * 1600 + 4 * 800
    assert found["student"]["head gradient"] == 3 * alone["student"]["head gradient"]
