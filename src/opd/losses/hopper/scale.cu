// values [n] *= factor, each rounded once; memory is not touched where the factor is 1.
// Macros: THREADS; BITS of a value, 32 or 16; OUT_BF16, 1: 16 bits are bf16, 0: fp16.

#include "ptx.cuh"

#if BITS == 32
typedef float Value;
__device__ __forceinline__ float scaled(float value, float by) { return value * by; }
#else
typedef unsigned short Value;
__device__ __forceinline__ Value scaled(Value value, float by) {
#if OUT_BF16
  return (Value)pack2(__uint_as_float((u32)value << 16) * by, 0.f);
#else
  return (Value)pack2(half_lo(value) * by, 0.f);
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) scale_in_place(Value* values, const float* factor, long long n) {
  const float by = *factor;
  if (by == 1.f) return;
  const long long step = (long long)gridDim.x * THREADS;
#pragma unroll 4
  for (long long i = (long long)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) values[i] = scaled(values[i], by);
}
