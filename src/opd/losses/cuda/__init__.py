"""The fused divergence for CUDA devices; `opd.losses.fused` is its front door and says where it can run.

Importing this package loads neither triton nor cuda.bindings: the kernels' modules are imported inside a call.
"""
