"""`head_loss` on a CUDA device, compiled and fused, against float64."""

import pytest
import torch
from tests.gpu import needs
from tests.gpu.reference import BF16, FP16, PARAMS, check, make_heads, run
from tests.losses.cases import clipped

from opd.losses import Loss, Weights
from opd.losses.head import top_tokens

needs.hopper()

BACKENDS = ("compiled", "fused")
# tokens, vocabulary, student width, teacher width: nothing a multiple of a tile, a cluster or a vector
SHAPES = ((1, 257, 128, 64), (300, 5003, 136, 72), (131, 33001, 256, 512))


@pytest.fixture(autouse=True)
def _few_compiled_forms():
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_match_float64(backend, kind, shape):
    heads = make_heads(shape)
    weights = Weights(divergence=torch.rand(shape[0], device="cuda"))
    check(run(heads, backend, kind, weights, temperature=0.7), run(heads, "exact", kind, weights, temperature=0.7))


def test_a_head_in_fp16_takes_the_compiled_form():
    heads = make_heads(SHAPES[1], FP16)
    found = run(heads, None)
    assert found.output.backend == "compiled"
    check(found, run(heads, "exact"))


@pytest.mark.parametrize(
    "names", [("divergence", "policy"), ("policy", "entropy"), ("nll",), ("divergence", "nll", "entropy")]
)
def test_every_term_matches_float64(names):
    heads, tokens = make_heads(SHAPES[1]), SHAPES[1][0]
    weights = Weights(**{name: torch.rand(tokens, device="cuda") for name in names})
    policy = {"advantages": torch.randn(tokens, device="cuda")} if "policy" in names else {}
    options = {"loss": Loss(policy=clipped), **policy}
    check(run(heads, "compiled", weights=weights, **options), run(heads, "exact", weights=weights, **options))


@pytest.mark.parametrize("vocab", [5003, 33001])
def test_the_teachers_top_tokens_match_float64(vocab):
    heads, loss = make_heads((300, vocab, 128, 64)), Loss("topk_reverse_kl", {"top_k": 16})
    check(run(heads, "compiled", loss=loss), run(heads, "exact", loss=loss))


@pytest.mark.parametrize("dtype", [BF16, FP16, torch.float32])
def test_the_likeliest_tokens_of_16_bit_heads_match_float64(dtype):
    hidden, weight, *_ = (each.detach() for each in make_heads((300, 5003, 128, 64), dtype))
    shown = torch.arange(300, device="cuda") % 3 == 0
    with torch.autocast("cuda", BF16):
        found = top_tokens(hidden, weight, shown, vocab=5001, temperature=0.7)
    expected = (hidden[shown].double() @ weight[:5001].double().T / 0.7).softmax(-1)
    values = expected.gather(-1, found[shown, :, 0].long())
    torch.testing.assert_close(found[shown, :, 1].double(), values, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(values, expected.topk(found.shape[1]).values, rtol=1e-4, atol=1e-6)
    assert found[~shown].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("valid", "rows"), [(1271, (1280, 1344)), (50_257, (50_257, 50_257)), (7, (8, 7))])
def test_entries_after_the_vocabulary_take_no_part_and_are_never_read(backend, valid, rows):
    heads = make_heads((130, max(rows), 64, 128))
    heads[1], heads[3] = heads[1][: rows[0]].clone(), heads[3][: rows[1]].clone()
    exact = run(heads, "exact", valid_vocab=valid)
    for weight in (heads[1], heads[3]):
        weight[valid:] = float("nan")
    found = run(heads, backend, valid_vocab=valid)
    check(found._replace(grad_weight=found.grad_weight[:valid]), exact._replace(grad_weight=exact.grad_weight[:valid]))
    assert found.grad_weight[valid:].count_nonzero() == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", PARAMS)
def test_a_student_near_its_teacher_keeps_its_gradient(backend, kind):
    heads = make_heads((200, 5003, 256, 256))
    heads[2] = heads[0].clone()
    heads[3] = (heads[1].float() * (1 + 3e-2 * torch.randn_like(heads[1].float()))).to(BF16)
    check(run(heads, backend, kind), run(heads, "exact", kind))


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_runs_are_bit_equal_under_autocast_too(backend):
    heads = make_heads((1500, 33001, 256, 512))
    first = run(heads, backend, workspace_gib=0.2)
    with torch.autocast("cuda", BF16):
        second = run(heads, backend, workspace_gib=0.2)
    assert torch.equal(first.grad_hidden, second.grad_hidden)
    assert torch.equal(first.grad_weight, second.grad_weight)
    assert all(torch.equal(values, second.output.statistics[name]) for name, values in first.output.statistics.items())


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_stays_within_the_workspace_whatever_the_number_of_tokens(backend):
    for tokens in (1024, 8192):
        heads = make_heads((tokens, 33001, 64, 64))
        run(heads, backend, workspace_gib=0.25)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(heads, backend, workspace_gib=0.25)
        kept = 33024 * 64 * (4 + 2) + 2 * heads[0].nbytes
        assert torch.cuda.max_memory_allocated() - before < 0.25 * 2**30 + kept + 64 * 2**20


def test_no_tokens_still_give_gradients_of_zero():
    found = run(make_heads((0, 1271, 64, 128)), None)
    assert found.output.loss == 0
    assert found.grad_weight.count_nonzero() == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_reported(backend, value):
    heads = make_heads((41, 1271, 64, 128))
    heads[0][3, 5] = value
    assert run(heads, backend).output.statistics["nonfinite"].nonzero().flatten().tolist() == [3]


def test_a_term_that_the_kernels_lack_sends_the_call_to_the_compiled_form():
    heads = make_heads((64, 1271, 64, 128))
    alone = Weights(divergence=torch.ones(64, device="cuda"))
    both = Weights(divergence=alone.divergence, nll=torch.ones(64, device="cuda"))
    assert run(heads, None, weights=alone).output.backend == "fused"
    assert run(heads, None, weights=both).output.backend == "compiled"
