"""The kernels of the fused divergence, compiled without a GPU."""

import pytest

pytest.importorskip("triton", reason="NOT TESTED HERE: the fused kernels need triton")
pytest.importorskip("cuda.bindings.nvrtc", reason="NOT TESTED HERE: the fused kernels need a CUDA run-time compiler")


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
