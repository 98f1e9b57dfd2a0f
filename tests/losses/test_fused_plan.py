"""The groups of tokens of the fused divergence, and its kernels compiled without a GPU."""

import pytest

pytest.importorskip("triton", reason="NOT TESTED HERE: the fused kernels need triton")
pytest.importorskip("cuda.bindings.nvrtc", reason="NOT TESTED HERE: the fused kernels need a CUDA run-time compiler")

from opd.losses.hopper.plan import RowBytes, plan_groups  # needs both modules

GIB = 2**30
QWEN = {"stride": 151_680, "num_blocks": 593}
WEIGHT_GRAD = 151_936 * 2048 * 4


@pytest.mark.parametrize("num_tokens", [0, 1, 127, 1000, 8192, 65536, 100001])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("workspace_gib", [0.3, 1.1, 2.33])
@pytest.mark.parametrize("weight_grad_bytes", [0, 41 * 8 * 4, WEIGHT_GRAD])
def test_groups_cover_all_tokens_once_within_the_budget(num_tokens, precision, workspace_gib, weight_grad_bytes):
    row = RowBytes.of(**QWEN, precision=precision)
    budget = int(workspace_gib * GIB)
    groups = plan_groups(num_tokens, row, workspace_bytes=budget, weight_grad_bytes=weight_grad_bytes)
    chunks = [chunk for group in groups for chunk in group.chunks()]
    assert [chunk.start for chunk in chunks] == [0, *(chunk.stop for chunk in chunks[:-1])][: len(chunks)]
    assert sum(chunk.stop - chunk.start for chunk in chunks) == num_tokens
    for place, group in enumerate(groups):
        logits = row.maxima + (0 if group.in_weight_grad else row.logits)
        assert (group.stop - group.start) * row.gradient + group.rows * logits <= budget
        if group.in_weight_grad:
            assert (place, group.rows * row.logits <= weight_grad_bytes) == (0, True)


@pytest.mark.parametrize(
    ("precision", "gib", "chunks"), [("fp16", 2.34, [4096]), ("fp16", 1.15, [3968, 1152, 1152]), ("fp32", 1.15, [1024, 384, 384])]
)  # fmt: skip
def test_8192_tokens_take_as_few_groups_as_measured(precision, gib, chunks):
    row = RowBytes.of(**QWEN, precision=precision)
    groups = plan_groups(8192, row, workspace_bytes=int(gib * GIB), weight_grad_bytes=WEIGHT_GRAD)
    assert [group.rows for group in groups] == chunks


def test_a_budget_below_one_tile_is_refused_with_the_number_that_would_do():
    row = RowBytes.of(**QWEN, precision="fp16")
    with pytest.raises(ValueError, match=r"workspace_gib=0\.010.*128 tokens.*give 0\.07"):
        plan_groups(8192, row, workspace_bytes=GIB // 100, weight_grad_bytes=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("is_fp32", [False, True])
def test_the_row_kernel_compiles_for_hopper(kind, is_fp32):
    from opd.losses.hopper.nvrtc import compile_cubin
    from opd.losses.hopper.row_kernel import row_kernel_macros

    macros, _ = row_kernel_macros(kind, 151936, is_fp32=is_fp32)
    assert compile_cubin("rows.cu", macros).startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.parametrize("shift", [True, False])
def test_the_head_product_compiles_for_hopper_with_its_matrix_units(shift):
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget

    from opd.losses.hopper import logits_kernel as module

    out = "fp16" if shift else "fp32"
    matrices = {"hidden": "bf16[128,64]", "weight": "bf16[256,64]", "logits": f"{out}[128,128]"}
    constants = {
        "SHIFT": shift,
        "OUT": tl.float16 if shift else tl.float32,
        "BM": module.TOKEN_BLOCK,
        "BN": module.VOCAB_BLOCK,
        "BK": module.DEPTH_BLOCK,
        "GROUP": module.TOKEN_BLOCKS_PER_GROUP,
        "NUM_PROGRAMS": 132,
    }
    signature = {name: f"tensordesc<{of}>" for name, of in matrices.items()}
    signature |= {"block_max": "*fp32", **dict.fromkeys(("num_tokens", "vocab", "depth", "num_blocks"), "i32")}
    values = {(len(signature) + place,): value for place, value in enumerate(constants.values())}
    signature |= dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(module._logits, signature, values, {})
    options = {"num_warps": module.NUM_WARPS, "num_stages": module.NUM_STAGES}
    assert "wgmma" in triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
