// 16-byte vectors of logits: loads, conversions, and the PTX that has no C++ name. Macros: rows.cu.
#pragma once

#define ELEMS (IN_F32 ? 4 : 8)
#define WARPS (THREADS / 32)

typedef unsigned int u32;
struct alignas(16) Vec { u32 r[4]; };

__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float lg2(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ u32 smem_u32(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ u32 cluster_rank() { u32 r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ __forceinline__ void store_remote(u32 local_addr, u32 rank, float v) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local_addr), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(v) : "memory");
}

__device__ __forceinline__ Vec load_stream(const Vec* p) {
  Vec v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.r[0]), "=r"(v.r[1]), "=r"(v.r[2]), "=r"(v.r[3]) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void copy_async(u32 dst, const Vec* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

// No distance is below fp16's lowest number, so that a probability of 0 times it is 0; nan stays.
__device__ __forceinline__ Vec clamp_low(Vec v) {
#if !IN_F32
#pragma unroll
  for (int k = 0; k < 4; ++k) asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(v.r[k]) : "r"(0xfbfffbffu));
#endif
  return v;
}

__device__ __forceinline__ float half_lo(u32 a) { float f; asm("{.reg .b16 l,h; mov.b32 {l,h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(a)); return f; }
__device__ __forceinline__ float half_hi(u32 a) { float f; asm("{.reg .b16 l,h; mov.b32 {l,h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(a)); return f; }
__device__ __forceinline__ u32 pack2(float lo, float hi) {
  u32 d;
#if OUT_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#endif
  return d;
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
