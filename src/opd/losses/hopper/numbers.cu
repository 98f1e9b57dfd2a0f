// A call's small numbers, each by one thread block and in a fixed order: two runs give the same bits.
// Macros: THREADS; BLOCKS_A_ROW, the CLUSTER of rows.cu; NUM_STATS, NUM_GRAD_STATS, NOISE_EVERY as there.

template <bool MAX>
__device__ __forceinline__ float combined(float a, float b) { return MAX ? fmaxf(a, b) : a + b; }

// Over all threads; every thread gets it.
template <bool MAX>
__device__ float over_block(float v, float* of_warps) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) v = combined<MAX>(v, __shfl_xor_sync(0xffffffffu, v, d));
  __syncthreads();  // what a call before left has been read
  if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x >> 5] = v;
  __syncthreads();
  v = of_warps[0];
#pragma unroll
  for (int w = 1; w < THREADS / 32; ++w) v = combined<MAX>(v, of_warps[w]);
  return v;
}

// weights [n] -> scaled [n]: as fractions of twice the power of two below the largest |weight|, which is numbers[0] (1 where all are 0).
// numbers[1]: 1 if all weights are finite.
extern "C" __global__ void __launch_bounds__(THREADS) scale_weights(const float* weights, float* scaled, float* numbers, long long n) {
  __shared__ float of_warps[THREADS / 32];
  float largest = 0.f, bad = 0.f;
  for (long long i = threadIdx.x; i < n; i += THREADS) {
    const float w = fabsf(weights[i]);
    if (w <= 3.402823466e38f) largest = fmaxf(largest, w);
    else bad = 1.f;
  }
  largest = over_block<true>(largest, of_warps);
  bad = over_block<true>(bad, of_warps);
  int exponent = 0;
  frexpf(largest, &exponent);  // largest = m 2^exponent, 1/2 <= m < 1
  const float unit = largest > 0.f ? ldexpf(1.f, exponent < 127 ? exponent : 127) : 1.f;
  for (long long i = threadIdx.x; i < n; i += THREADS) scaled[i] = weights[i] / unit;
  if (threadIdx.x == 0) {
    numbers[0] = unit;
    numbers[1] = bad > 0.f ? 0.f : 1.f;
  }
}

// weights [n], grad_stats [n, BLOCKS_A_ROW, NUM_GRAD_STATS] and stats [n, NUM_STATS] of a chunk -> numbers [5]: row_kernel.gradient_numbers.
extern "C" __global__ void __launch_bounds__(THREADS) gradient_numbers(const float* weights, const float* grad_stats, const float* stats,
                                                                       float* numbers, long long n, float stored_unit, float of_a_row) {
  __shared__ float of_warps[THREADS / 32];
  float signal = 0.f, noise = 0.f, sampled = 0.f, largest = 0.f, nonfinite = 0.f;
  for (long long i = threadIdx.x; i < n; i += THREADS) {
    const float weight = fabsf(weights[i]);
    const float* of_row = grad_stats + i * BLOCKS_A_ROW * NUM_GRAD_STATS;
    float squared = 0.f, peak = 0.f, error = 0.f;
#pragma unroll
    for (int k = 0; k < BLOCKS_A_ROW; ++k) {
      squared += of_row[k * NUM_GRAD_STATS];
      peak = fmaxf(peak, of_row[k * NUM_GRAD_STATS + 1]);
      error += of_row[k * NUM_GRAD_STATS + 2];
    }
    largest = fmaxf(largest, peak * weight);
    nonfinite += stats[i * NUM_STATS + NUM_STATS - 1] == 0.f ? 1.f : 0.f;
    if (i % NOISE_EVERY == 0) {
      const float by = weight * weight;
      signal = fmaf(by, squared, signal);
      noise = fmaf(by, error, noise);
      sampled += by > 0.f ? 1.f : 0.f;
    }
  }
  signal = over_block<false>(signal, of_warps);
  noise = over_block<false>(noise, of_warps);
  sampled = over_block<false>(sampled, of_warps);
  largest = over_block<true>(largest, of_warps);
  nonfinite = over_block<false>(nonfinite, of_warps);
  if (threadIdx.x == 0) {
    numbers[0] = signal;
    numbers[1] = noise;
    numbers[2] = sampled * of_a_row;
    numbers[3] = largest * stored_unit;
    numbers[4] = nonfinite;
  }
}
