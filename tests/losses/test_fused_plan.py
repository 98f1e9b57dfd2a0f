"""Chunk sizes of the fused divergence, and what of it can be checked without a GPU."""

import subprocess
import sys

import pytest

from opd.losses.hopper.plan import RowBytes, TokenGroup, plan_groups

GIB = 2**30
QWEN = {"stride": 151936, "num_blocks": 594}
WEIGHT_GRAD = 151936 * 2048 * 4


def peak_bytes(group: TokenGroup, row: RowBytes) -> int:
    """Workspace that a group needs beside the weight gradient: of each chunk the gradient's rows up to its end, and its logits."""
    logits = row.side + (0 if group.in_weight_grad else row.logits)
    return max((stop - group.start) * row.gradient + (stop - start) * logits for start, stop in group.chunks())


@pytest.mark.parametrize("num_tokens", [1, 127, 1000, 8192, 65536, 100001])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("workspace_gib", [0.3, 1.1, 2.33])
@pytest.mark.parametrize("weight_grad_bytes", [0, WEIGHT_GRAD])
def test_groups_cover_all_tokens_once_within_the_budget(num_tokens, precision, workspace_gib, weight_grad_bytes):
    row = RowBytes.of(**QWEN, precision=precision)
    budget = int(workspace_gib * GIB)
    groups = plan_groups(num_tokens, row, workspace_bytes=budget, weight_grad_bytes=weight_grad_bytes)
    assert [g.start for g in groups] == [0, *(g.stop for g in groups[:-1])]
    assert groups[-1].stop == num_tokens
    for group in groups:
        assert peak_bytes(group, row) <= budget
        chunks = list(group.chunks())
        assert chunks[0][0] == group.start
        assert chunks[-1][1] == group.stop
        assert [stop - start for start, stop in chunks] == list(group.sizes)
        assert all(size > 0 for size in group.sizes)


def test_only_the_first_group_borrows_the_weight_gradient_and_never_more_than_it_has():
    row = RowBytes.of(**QWEN, precision="fp32")
    groups = plan_groups(8192, row, workspace_bytes=int(1.1 * GIB), weight_grad_bytes=WEIGHT_GRAD)
    assert [g.in_weight_grad for g in groups] == [True] + [False] * (len(groups) - 1)
    assert max(groups[0].sizes) * row.logits <= WEIGHT_GRAD


def test_the_gradient_of_8192_tokens_fits_one_group_with_2_33_gib():
    row = RowBytes.of(**QWEN, precision="fp16")
    groups = plan_groups(8192, row, workspace_bytes=int(2.35 * GIB), weight_grad_bytes=WEIGHT_GRAD)
    assert len(groups) == 1
    # 4096 * 151936 * 2 bytes are exactly the weight gradient's 2048 columns of fp32.
    assert groups[0].sizes == (4096, 4096)


def test_fp32_logits_of_8192_tokens_take_three_groups_of_1_15_gib_and_no_small_chunk():
    """Later chunks' gradient rows hold the logits of earlier ones; in 512 tokens' own storage it would be four groups."""
    row = RowBytes.of(stride=151_680, num_blocks=593, precision="fp32")
    groups = plan_groups(8192, row, workspace_bytes=int(1.15 * GIB), weight_grad_bytes=151_936 * 2048 * 4)
    assert len(groups) == 3
    assert min(size for group in groups for size in group.sizes) >= 256


@pytest.mark.parametrize("num_tokens", [1, 41, 200])
@pytest.mark.parametrize("weight_grad_bytes", [1271 * 64 * 4, 41 * 8 * 4])
def test_a_weight_gradient_smaller_than_one_tile_of_logits_is_not_borrowed(num_tokens, weight_grad_bytes):
    row = RowBytes.of(stride=1280, num_blocks=5, precision="fp16")
    groups = plan_groups(num_tokens, row, workspace_bytes=GIB, weight_grad_bytes=weight_grad_bytes)
    assert [(g.start, g.stop, g.in_weight_grad) for g in groups] == [(0, num_tokens, False)]
    assert sum(stop - start for start, stop in groups[0].chunks()) == num_tokens


def test_more_workspace_never_means_more_groups():
    row = RowBytes.of(**QWEN, precision="fp16")
    counts = [
        len(plan_groups(65536, row, workspace_bytes=int(gib * GIB), weight_grad_bytes=WEIGHT_GRAD))
        for gib in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    assert counts == sorted(counts, reverse=True)


def test_a_budget_below_one_tile_is_refused_with_the_number_that_would_do():
    row = RowBytes.of(**QWEN, precision="fp16")
    with pytest.raises(ValueError, match=r"workspace_gib=0\.010.*at least 128.*give 0\.07"):
        plan_groups(8192, row, workspace_bytes=GIB // 100, weight_grad_bytes=0)


@pytest.mark.slow
def test_importing_the_losses_loads_neither_triton_nor_cuda_bindings():
    code = (
        "import sys, opd.losses.hopper, opd.losses.hopper.buffers, opd.losses.hopper.nvrtc\n"
        "assert not {'triton', 'cuda.bindings.driver', 'cuda.bindings.nvrtc'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("is_fp32", [False, True])
def test_the_row_kernel_compiles_for_hopper(kind, is_fp32):
    pytest.importorskip("cuda.bindings.nvrtc", reason="no CUDA run-time compiler in this torch build")
    from opd.losses.hopper.nvrtc import compile_cubin
    from opd.losses.hopper.row_kernel import row_kernel_macros

    macros, _ = row_kernel_macros(kind, 151936, is_fp32=is_fp32)
    assert compile_cubin("rows.cu", macros, "sm_90a").startswith(b"\x7fELF")


def hopper_code(function, signature: dict[str, str], constants: dict, **options) -> str:
    from triton import compile as compiled
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    values = {(len(signature) + place,): value for place, value in enumerate(constants.values())}
    source = ASTSource(function, signature | dict.fromkeys(constants, "constexpr"), values, {})
    return compiled(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


@pytest.mark.slow
@pytest.mark.parametrize("shift", [True, False])
def test_the_head_product_compiles_for_hopper_with_its_matrix_units(shift):
    pytest.importorskip("triton", reason="NOT TESTED HERE: the head product needs triton")
    import triton.language as tl

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
    code = hopper_code(module._logits, signature, constants, num_warps=module.NUM_WARPS, num_stages=module.NUM_STAGES)
    assert "wgmma" in code


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_scaling_compiles_for_hopper(dtype):
    pytest.importorskip("triton", reason="NOT TESTED HERE: the scaling needs triton")
    from opd.losses.hopper import logits_kernel as module

    signature = {"values": f"*{dtype}", "factor": "*fp32", "count": "i32"}
    assert "st.global" in hopper_code(module._scale, signature, {"BLOCK": module.SCALE_BLOCK})
