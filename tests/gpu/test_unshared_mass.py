"""The mass outside the shared tokens, from the fused divergence's own log-probabilities, against float64."""

import torch
from tests.gpu import needs
from tests.gpu.reference import BF16, SIZES, make_heads, weights_of

from opd.losses.fused import head_divergence
from opd.losses.unshared import unshared_mass

needs.hopper()

# A Qwen2.5 student of a Qwen3 teacher: 151,665 shared tokens, the teacher has four more; the student's side has three here.
SHARED, STUDENT, TEACHER, ROWS = 151_665, 151_668, 151_669, 151_936


def test_the_mass_of_both_sides_is_the_whole_softmaxs():
    heads = make_heads((130, ROWS, 64, 128), BF16, BF16)
    for weight in (heads[1], heads[3]):
        weight[SHARED:] *= 4  # enough to matter in some rows, and rows behind the tokenizer that must not count
    ids = torch.randint(0, SHARED, (130,), device="cuda", generator=torch.Generator("cuda").manual_seed(6))
    output = head_divergence(
        *heads,
        "reverse_kl",
        token_weights=weights_of("ones", 130),
        valid_vocab=SHARED,
        token_ids=ids,
        backend="fused",
        **SIZES,
    )
    sides = (
        (heads[0], heads[1], STUDENT, output.student_log_prob),
        (heads[2], heads[3], TEACHER, output.teacher_log_prob),
    )
    for hidden, weight, entries, log_prob in sides:
        expected = torch.softmax(hidden.double() @ weight[:entries].double().T, dim=-1)[:, SHARED:].sum(dim=-1)
        found = unshared_mass(
            hidden, weight, shared=SHARED, entries=entries, token_ids=ids, log_prob=log_prob, temperature=1.0
        )
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=1e-9)
