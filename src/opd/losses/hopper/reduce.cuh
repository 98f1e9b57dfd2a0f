// Sums and maxima over a warp, a thread block and a cluster, each in a fixed order. Macros: rows.cu.
#pragma once
#include "vectors.cuh"

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
