// Parts of rows.cu: 16-byte vectors of logits as fp32 entries, and sums and maxima in a fixed order. Macros: rows.cu.
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

// The entries after the end of a row: far below every logit, and finite, so that 0 * fill is 0. -65504 or -1e30.
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

struct Shared {
  float warp[WARPS][5];
  float cluster[3][CLUSTER][5];  // one set of slots a phase: a fast block never overwrites what a slow one has to read
#if !IN_F32
  float base[2][VECS * WARPS];   // (block maximum - row maximum) in bits, of the blocks that this thread block owns
#endif
};

template <bool MAX>
__device__ __forceinline__ float combine(float a, float b) { return MAX ? fmaxf(a, b) : a + b; }

// Reduce N values over the warp, and leave each warp's result in shared memory.
template <int N, bool MAX>
__device__ __forceinline__ void warp_reduce(float (&v)[N], Shared& sh) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v[n] = combine<MAX>(v[n], __shfl_xor_sync(0xffffffffu, v[n], d));
  }
  if ((threadIdx.x & 31) == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) sh.warp[threadIdx.x >> 5][n] = v[n];
  }
  __syncthreads();
}

template <bool MAX>
__device__ __forceinline__ float over_warps(const Shared& sh, int n) {
  float a = sh.warp[0][n];
#pragma unroll
  for (int w = 1; w < WARPS; ++w) a = combine<MAX>(a, sh.warp[w][n]);
  return a;
}

// Reduce N values over every thread of the cluster, in a fixed order: two runs give the same bits.
template <int N, bool MAX>
__device__ __forceinline__ void cluster_reduce(float (&v)[N], Shared& sh, int phase) {
  warp_reduce<N, MAX>(v, sh);
  if (threadIdx.x < CLUSTER * N) {
    const int peer = threadIdx.x / N, n = threadIdx.x % N;
    store_remote(smem_u32(&sh.cluster[phase][cluster_rank()][n]), peer, over_warps<MAX>(sh, n));
  }
  cluster_arrive();
  cluster_wait();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    float a = sh.cluster[phase][0][n];
#pragma unroll
    for (int r = 1; r < CLUSTER; ++r) a = combine<MAX>(a, sh.cluster[phase][r][n]);
    v[n] = a;
  }
}
