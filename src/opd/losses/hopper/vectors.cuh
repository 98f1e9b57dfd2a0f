// 16-byte vectors of logits, as fp32 entries. Macros: rows.cu.
#pragma once

#include "ptx.cuh"

#define ELEMS (IN_F32 ? 4 : 8)
#define WARPS (THREADS / 32)

// No distance is below fp16's lowest number, so that a probability of 0 times it is 0; nan stays.
__device__ __forceinline__ Vec clamp_low(Vec v) {
#if !IN_F32
#pragma unroll
  for (int k = 0; k < 4; ++k) v.r[k] = max_nan2(v.r[k], 0xfbfffbffu);
#endif
  return v;
}

// Element e of a vector as fp32; e is a compile-time constant after unrolling.
__device__ __forceinline__ float value(const Vec& v, int e) {
#if IN_F32
  return __uint_as_float(v.r[e]);
#else
  return (e & 1) ? half_hi(v.r[e >> 1]) : half_lo(v.r[e >> 1]);
#endif
}

// What stands past the end of a row: far below every logit, and finite, so that 0 * fill is 0. -65504 or -1e30.
#define FILL_WORD (IN_F32 ? 0xf149f2cau : 0xfbfffbffu)
__device__ __forceinline__ Vec fill() { Vec v; v.r[0] = v.r[1] = v.r[2] = v.r[3] = FILL_WORD; return v; }
__device__ __forceinline__ Vec fill_from(Vec v, int num_valid) {
#pragma unroll
  for (int e = 0; e < ELEMS; ++e) {
    if (e < num_valid) continue;
#if IN_F32
    v.r[e] = FILL_WORD;
#else
    v.r[e >> 1] = (e & 1) ? ((v.r[e >> 1] & 0xffffu) | (FILL_WORD & 0xffff0000u)) : ((v.r[e >> 1] & 0xffff0000u) | (FILL_WORD & 0xffffu));
#endif
  }
  return v;
}
