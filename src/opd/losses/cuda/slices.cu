// A row's statistics from those of its slices, which the ranks that share the vocabulary made by the part SUMS of rows.cu.
// Macros: KIND, NUM_STATS, NUM_SUMS, NUM_MOMENTS, NUM_MERGED as there; THREADS, one for each row.

#define LN2 0.69314718055994531
#define LOG2E 1.4426950408889634

// sums [slices, rows, NUM_SUMS] of a slice, in units of a logit: largest logit m_S, m_T; in bits, relative to it (x of the student,
// y of the teacher): Z_S, Z_T, sum e_S x, sum e_T y, the cross moment (e_S y for reverse_kl, e_T x for forward_kl); the token's two
// logits, 0 in a slice that lacks it. moments [slices, rows, NUM_MOMENTS] of jsd, null before they are made.
// merged [rows, NUM_MERGED]: largest logit of student and teacher, log2 Z_S, log2 Z_T, the gradient's centre, 1 if finite.
// stats [rows, NUM_STATS]: rows.cu.
// In fp64: a slice's sums are moved to the row's maxima by terms of both signs.
extern "C" __global__ void merge_rows(const float* sums, const float* moments, float* merged, float* stats, long long num_slices,
                                      long long num_rows, float inv_temperature, float beta, float rest) {
  const long long row = (long long)blockIdx.x * THREADS + threadIdx.x;
  if (row >= num_rows) return;
  float top[2] = {-1e30f, -1e30f};
  for (long long k = 0; k < num_slices; ++k) {
    const float* of = sums + (k * num_rows + row) * NUM_SUMS;
    top[0] = fmaxf(top[0], of[0]);
    top[1] = fmaxf(top[1], of[1]);
  }
  const double scale = LOG2E * inv_temperature;
  double z_s = 0, z_t = 0, moment_s = 0, moment_t = 0, cross = 0, s_token = 0, t_token = 0;
  for (long long k = 0; k < num_slices; ++k) {
    const float* of = sums + (k * num_rows + row) * NUM_SUMS;
    const double a = ((double)of[0] - top[0]) * scale, b = ((double)of[1] - top[1]) * scale;
    const double by_s = exp2(a), by_t = exp2(b);
    z_s += by_s * of[2];
    z_t += by_t * of[3];
    moment_s += by_s * (of[4] + a * of[2]);
    moment_t += by_t * (of[5] + b * of[3]);
#if KIND == 0
    cross += by_s * (of[6] + b * of[2]);
#elif KIND == 1
    cross += by_t * (of[6] + a * of[3]);
#endif
    s_token += of[7];
    t_token += of[8];
  }
  const double log_zs = log2(z_s), log_zt = log2(z_t), mean_s = moment_s / z_s, mean_t = moment_t / z_t;
#if KIND == 0
  const double divergence = (mean_s - log_zs) - (cross / z_s - log_zt), centre = divergence;
#elif KIND == 1
  const double divergence = (mean_t - log_zt) - (cross / z_t - log_zs), centre = 0;
#else
  double of_s = 0, of_t = 0;
  for (long long k = 0; moments != nullptr && k < num_slices; ++k) {
    of_s += moments[(k * num_rows + row) * NUM_MOMENTS];
    of_t += moments[(k * num_rows + row) * NUM_MOMENTS + 1];
  }
  const double divergence = beta * of_t - rest * of_s - log2((double)rest), centre = of_s;
#endif
  const bool finite = isfinite((float)moment_s) && isfinite((float)moment_t) && isfinite((float)divergence);
  float* out = merged + row * NUM_MERGED;
  out[0] = top[0];
  out[1] = top[1];
  out[2] = (float)log_zs;
  out[3] = (float)log_zt;
  out[4] = (float)centre;
  out[5] = finite ? 1.f : 0.f;
  float* of_row = stats + row * NUM_STATS;
  of_row[0] = finite ? (float)(LN2 * divergence) : 0.f;
  of_row[1] = finite ? (float)(LN2 * (log_zs - mean_s)) : 0.f;
  of_row[2] = finite ? (float)(LN2 * (log_zt - mean_t)) : 0.f;
  of_row[3] = finite ? (float)(LN2 * ((s_token - top[0]) * scale - log_zs)) : 0.f;
  of_row[4] = finite ? (float)(LN2 * ((t_token - top[1]) * scale - log_zt)) : 0.f;
  of_row[5] = finite ? 1.f : 0.f;
}
