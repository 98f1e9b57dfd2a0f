// One row of logits per thread-block cluster. Both sides' rows are read from memory once and kept on chip: the student's
// in registers, the teacher's in shared memory. Statistics and gradient are made from that copy.
// Let a = log p_S - log p_T, tau the temperature. Gradients by a logit: reverse_kl p_S (a - D) / tau.
// forward_kl (p_S - p_T) / tau. jsd (1 - beta) p_S (log(p_S / m) - KL(p_S || m)) / tau. Storage: logits_kernel.py.
//
// Compiled at run time by NVRTC with these macros:
//   KIND      0 reverse_kl, 1 forward_kl, 2 jsd
//   IN_F32    0: logits in fp16 as distances to the maximum of their block of 256; 1: plain fp32 logits
//   VECS      16-byte vectors of one row that a thread owns
//   THREADS, CLUSTER, MIN_BLOCKS   launch shape
//   NUM_STATS, NUM_GRAD_STATS, NOISE_EVERY   row_kernel.py
//
// Inside, a logit is x = (s - row maximum) * log2(e) / temperature: an exp is one ex2, and logs are in bits to the end.

#include "rows.cuh"

typedef
#if IN_F32
    uint2
#else
    uint4
#endif
        GradVec;  // the gradient's entries of one vector of logits

#define LN2 0.69314718055994531f
#define LOG2E 1.4426950408889634f

// With d = log2(p_T / p_S): log2(m / ((1 - beta) p_S)) = log2(1 + odds 2^d), odds = beta / (1 - beta). Its
// differences do not cancel where p_T is far below p_S; differences of log p_S - log m would. Beyond 2^100 it is linear in d.
__device__ __forceinline__ float log_mixture_ratio(float d, float odds) {
  return lg2(fmaf(odds, ex2(fminf(d, 100.f)), 1.f)) + fmaxf(d - 100.f, 0.f);
}

// Gradient of the divergence with respect to one logit of the student, in bits for the two kinds with logs.
__device__ __forceinline__ float logit_gradient(float lp, float lq, float p, float centre, float odds) {
#if KIND == 0
  return p * ((lp - lq) - centre);
#elif KIND == 1
  return p - ex2(lq);
#else
  return p * (centre - log_mixture_ratio(lq - lp, odds));
#endif
}

// Root mean square of (rounding error / value) in fp16, for values spread evenly over a binade in log. Steps are 2^-10
// at its bottom, the error in a step is uniform (1/12). The mean of 1/x^2 over [1, 2] with density 1/x is 0.375 / ln 2.
#define FP16_STEP 2.0735e-4f

// Expected square of one gradient entry's error from the rounding of its two stored logits (distances ds, dt). A step
// common to all of a row's probability is one that softmax does not see: hence 1 - p.
#if !IN_F32
__device__ __forceinline__ float squared_error(float g, float lp, float lq, float p, float odds, float ds, float dt,
                                               float inv_temperature) {
#if KIND == 0
  const float by_s = (1.f - p) * fmaf(p, LOG2E, fabsf(g)), by_t = (1.f - p) * p * LOG2E;
#elif KIND == 1
  const float q = ex2(lq), by_s = p * (1.f - p), by_t = q * (1.f - q);
#else
  const float by_mixture = odds * ex2(fminf(lq - lp, 100.f)), share = by_mixture / (1.f + by_mixture);  // beta p_T / m
  const float by_s = (1.f - p) * fmaf(p * share, LOG2E, fabsf(g)), by_t = (1.f - p) * p * share * LOG2E;
#endif
  const float es = FP16_STEP * inv_temperature * by_s * ds, et = FP16_STEP * inv_temperature * by_t * dt;
  return fmaf(es, es, et * et);
}
#endif

// student, teacher [rows, stride_in]. student_max, teacher_max [rows, num_blocks], of fp16 logits only.
// grad [rows, stride_grad], 0 from the vocabulary's end on, may alias fp16 student. weight [rows]. token [rows].
// stats [rows, NUM_STATS]: divergence, student entropy, teacher entropy, log p_S(token), log p_T(token), 1 if finite.
// grad_stats [rows, CLUSTER, NUM_GRAD_STATS]: sum of g^2, max |g| (weight 1, no scale, in the kernel's units).
// The third is the expected squared error of g from fp16 logits on every NOISE_EVERY-th row, else 0.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, MIN_BLOCKS)
divergence_rows(const void* student, const void* teacher, const float* student_max, const float* teacher_max, void* grad,
                const float* weight, const long long* token, float* stats, float* grad_stats,
                long long stride_in, long long stride_grad, long long vocab_size, float inv_temperature, float grad_scale, float beta,
                float rest) {
  extern __shared__ Vec teacher_smem[];
  __shared__ Shared sh;
  const int tid = threadIdx.x, warp = tid >> 5, vocab = (int)vocab_size;
  const u32 rank = cluster_rank();
  const long long row = blockIdx.x / CLUSTER;
  const int num_vecs = (vocab + ELEMS - 1) / ELEMS;
  const Vec* s_row = (const Vec*)((const char*)student + row * stride_in * (IN_F32 ? 4 : 2));
  const Vec* t_row = (const Vec*)((const char*)teacher + row * stride_in * (IN_F32 ? 4 : 2));
  // A block's shared memory may be written from outside only once it runs: arrive here, wait before the first exchange.
  cluster_arrive();

  // 0. Load. Only a thread's last vector can be past the row, or be cut by its end.
  Vec s[VECS];
  const int last = ((VECS - 1) * CLUSTER + rank) * THREADS + tid;
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const int v = (i * CLUSTER + rank) * THREADS + tid;
    if (i < VECS - 1 || last < num_vecs) copy_async(smem_u32(&teacher_smem[i * THREADS + tid]), t_row + v);
    else teacher_smem[i * THREADS + tid] = fill();
  }
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const int v = (i * CLUSTER + rank) * THREADS + tid;
    if (i < VECS - 1 || last < num_vecs) s[i] = clamp_low(load_stream(s_row + v));
    else s[i] = fill();
  }
  const float scale = LOG2E * inv_temperature, odds = beta / rest;  // rest = 1 - beta, rounded once
  const long long wanted = token[row];
  const int id = (int)(wanted < 0 ? 0 : wanted < vocab ? wanted : vocab - 1);  // one that does not count is not looked at afterwards
  float s_token = 0.f, t_token = 0.f;
  if (rank == 0 && tid == 0) {
#if IN_F32
    s_token = ((const float*)s_row)[id];
    t_token = ((const float*)t_row)[id];
#else
    s_token = half_lo(((const unsigned short*)s_row)[id]);
    t_token = half_lo(((const unsigned short*)t_row)[id]);
#endif
  }

  // 1. Row maxima; of fp16 logits they are the maxima of the blocks' maxima.
  float top[2] = {-1e30f, -1e30f};
#if IN_F32
  wait_copies();
  if (vocab - last * ELEMS > 0 && vocab - last * ELEMS < ELEMS) {
    s[VECS - 1] = fill_from(s[VECS - 1], vocab - last * ELEMS);
    teacher_smem[(VECS - 1) * THREADS + tid] = fill_from(teacher_smem[(VECS - 1) * THREADS + tid], vocab - last * ELEMS);
  }
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const Vec t = teacher_smem[i * THREADS + tid];
#pragma unroll
    for (int e = 0; e < ELEMS; ++e) { top[0] = fmaxf(top[0], value(s[i], e)); top[1] = fmaxf(top[1], value(t, e)); }
  }
  cluster_wait();
  cluster_reduce<2, true>(top, sh, 0);
#define S_BASE(i) (-top[0] * scale)
#define T_BASE(i) (-top[1] * scale)
#else
  const int num_blocks = (vocab + 255) / 256;
  const float* s_max = student_max + row * num_blocks;
  const float* t_max = teacher_max + row * num_blocks;
  for (int b = tid; b < vocab / 256; b += THREADS) { top[0] = fmaxf(top[0], s_max[b]); top[1] = fmaxf(top[1], t_max[b]); }
  const int cut = num_blocks * 32 - 32 + tid;  // the last block's entries, where the row's end cuts it: see logits_kernel.py
  if (vocab % 256 != 0 && tid < 32 && cut < num_vecs) {
    const Vec a = fill_from(clamp_low(s_row[cut]), vocab - cut * 8), b = fill_from(clamp_low(t_row[cut]), vocab - cut * 8);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      top[0] = fmaxf(top[0], value(a, e) + s_max[num_blocks - 1]);
      top[1] = fmaxf(top[1], value(b, e) + t_max[num_blocks - 1]);
    }
  }
  warp_reduce<2, true>(top, sh);
  top[0] = over_warps<true>(sh, 0);
  top[1] = over_warps<true>(sh, 1);
  // A warp's 32 vectors of 8 are exactly one block.
  for (int j = tid; j < VECS * WARPS; j += THREADS) {
    const int b = ((j / WARPS) * CLUSTER + rank) * WARPS + j % WARPS;
    sh.base[0][j] = b < num_blocks ? (s_max[b] - top[0]) * scale : 0.f;
    sh.base[1][j] = b < num_blocks ? (t_max[b] - top[1]) * scale : 0.f;
  }
  if (rank == 0 && tid == 0) {
    s_token += s_max[id / 256];
    t_token += t_max[id / 256];
  }
  wait_copies();
  if (vocab - last * ELEMS > 0 && vocab - last * ELEMS < ELEMS) {
    s[VECS - 1] = fill_from(s[VECS - 1], vocab - last * ELEMS);
    teacher_smem[(VECS - 1) * THREADS + tid] = fill_from(teacher_smem[(VECS - 1) * THREADS + tid], vocab - last * ELEMS);
  }
  __syncthreads();
  cluster_wait();
#define S_BASE(i) sh.base[0][(i) * WARPS + warp]
#define T_BASE(i) sh.base[1][(i) * WARPS + warp]
#endif

  // 2. Z_S, Z_T, sum e_S x, sum e_T y, and the cross moment: e_S y (reverse_kl) or e_T x (forward_kl).
  float acc[5] = {0.f, 0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const Vec t = clamp_low(teacher_smem[i * THREADS + tid]);
    const float s_base = S_BASE(i), t_base = T_BASE(i);
#pragma unroll
    for (int e = 0; e < ELEMS; ++e) {
      const float x = fmaf(value(s[i], e), scale, s_base), y = fmaf(value(t, e), scale, t_base);
      const float es = ex2(x), et = ex2(y);
      acc[0] += es;
      acc[1] += et;
      acc[2] = fmaf(es, x, acc[2]);
      acc[3] = fmaf(et, y, acc[3]);
#if KIND == 0
      acc[4] = fmaf(es, y, acc[4]);
#elif KIND == 1
      acc[4] = fmaf(et, x, acc[4]);
#endif
    }
  }
  cluster_reduce<5, false>(acc, sh, 1);
  const float log_zs = log2f(acc[0]), log_zt = log2f(acc[1]);
  const float mean_s = acc[2] / acc[0], mean_t = acc[3] / acc[1];
#if KIND == 0
  const float divergence = (mean_s - log_zs) - (acc[4] / acc[0] - log_zt), centre = divergence;
#elif KIND == 1
  const float divergence = (mean_t - log_zt) - (acc[4] / acc[1] - log_zs), centre = 0.f;
#endif
#if KIND == 2
  float moment[2] = {0.f, 0.f};  // E_S[ratio], E_T[d - ratio] of log_mixture_ratio
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const Vec t = clamp_low(teacher_smem[i * THREADS + tid]);
    const float s_base = S_BASE(i) - log_zs, t_base = T_BASE(i) - log_zt;
#pragma unroll
    for (int e = 0; e < ELEMS; ++e) {
      const float lp = fmaf(value(s[i], e), scale, s_base), lq = fmaf(value(t, e), scale, t_base);
      const float p = ex2(lp), ratio = log_mixture_ratio(lq - lp, odds);
      moment[0] = fmaf(p, ratio, moment[0]);
      moment[1] = fmaf(ex2(lq), (lq - lp) - ratio, moment[1]);
    }
  }
  cluster_reduce<2, false>(moment, sh, 2);
  const float divergence = beta * moment[1] - rest * moment[0] - log2f(rest), centre = moment[0];
#endif
  const bool finite = isfinite(acc[2]) && isfinite(acc[3]) && isfinite(divergence);
  if (rank == 0 && tid == 0) {
    float* of_row = stats + row * NUM_STATS;
    of_row[0] = finite ? LN2 * divergence : 0.f;
    of_row[1] = finite ? LN2 * (log_zs - mean_s) : 0.f;
    of_row[2] = finite ? LN2 * (log_zt - mean_t) : 0.f;
    of_row[3] = finite ? LN2 * ((s_token - top[0]) * scale - log_zs) : 0.f;
    of_row[4] = finite ? LN2 * ((t_token - top[1]) * scale - log_zt) : 0.f;
    of_row[5] = finite ? 1.f : 0.f;
  }

  // 3. The gradient, times the row's weight and grad_scale; 0 for a row that is not finite.
  const float factor = weight[row] * grad_scale;
  float sum_g2 = 0.f, noise = 0.f, max_g[1] = {0.f};
  GradVec* out_row = (GradVec*)((unsigned short*)grad + row * stride_grad);
  // The products run over whole rows: their padding is 0 too. (Of the row's last vector the fill makes it so, as p is 0.)
  if (rank == 0) for (int v = num_vecs + tid; v < stride_grad / ELEMS; v += THREADS) out_row[v] = GradVec{};
#pragma unroll
  for (int i = 0; i < VECS; ++i) {
    const Vec t = clamp_low(teacher_smem[i * THREADS + tid]);
    float g[ELEMS];
    const float s_base = S_BASE(i) - log_zs, t_base = T_BASE(i) - log_zt;
#pragma unroll
    for (int e = 0; e < ELEMS; ++e) {
      const float lp = fmaf(value(s[i], e), scale, s_base), lq = fmaf(value(t, e), scale, t_base);
      const float p = ex2(lp);
      g[e] = logit_gradient(lp, lq, p, centre, odds);
      sum_g2 = fmaf(g[e], g[e], sum_g2);
      max_g[0] = fmaxf(max_g[0], fabsf(g[e]));
#if !IN_F32
      if (row % NOISE_EVERY == 0) noise += squared_error(g[e], lp, lq, p, odds, value(s[i], e), value(t, e), inv_temperature);
#endif
    }
    if (i < VECS - 1 || last < num_vecs) {
      const int v = (i * CLUSTER + rank) * THREADS + tid;
      u32 w[ELEMS / 2];
#pragma unroll
      for (int k = 0; k < ELEMS / 2; ++k) w[k] = finite ? pack2(g[2 * k] * factor, g[2 * k + 1] * factor) : 0u;
#if IN_F32
      out_row[v] = make_uint2(w[0], w[1]);
#else
      out_row[v] = make_uint4(w[0], w[1], w[2], w[3]);
#endif
    }
  }
  float sums[2] = {sum_g2, noise};
  warp_reduce<2, false>(sums, sh);
  const float block_g2 = over_warps<false>(sh, 0), block_noise = over_warps<false>(sh, 1);
  __syncthreads();
  warp_reduce<1, true>(max_g, sh);
  if (tid == 0) {
    float* of_block = grad_stats + (row * CLUSTER + rank) * NUM_GRAD_STATS;
    of_block[0] = finite ? block_g2 : 0.f;
    of_block[1] = finite ? over_warps<true>(sh, 0) : 0.f;
    of_block[2] = finite ? block_noise : 0.f;
  }
}
