// The device's instructions in C++, and a scheduler that runs a cluster's threads as fibers: what rows.cu needs to run on a CPU.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __cluster_dims__(...)
#define __launch_bounds__(...)
using std::isfinite;

typedef unsigned int u32;
struct alignas(16) Vec { u32 r[4]; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

struct Index { u32 x; };
inline Index threadIdx, blockIdx;

constexpr int NUM_FIBERS = CLUSTER * THREADS;
constexpr size_t STACK = 64 * 1024, BLOCK_BYTES = 1 << 20;

struct Barrier {
  int arrived = 0;
  long generation = 0;
  void arrive(int count) {
    if (++arrived == count) arrived = 0, ++generation;
  }
};

inline std::vector<char> arena(CLUSTER * BLOCK_BYTES);  // the blocks' shared memory, one after another
inline ucontext_t scheduler, fibers[NUM_FIBERS];
inline bool finished[NUM_FIBERS];
inline int current;
inline Barrier of_cluster, of_block[CLUSTER], of_warp[NUM_FIBERS / 32];
inline long cluster_generation[NUM_FIBERS];
inline float exchanged[NUM_FIBERS];

inline void leave_to_scheduler() { swapcontext(&fibers[current], &scheduler); }
inline void meet(Barrier& barrier, int count) {
  const long generation = barrier.generation;
  barrier.arrive(count);
  while (barrier.generation == generation) leave_to_scheduler();
}
inline char* block_memory() { return arena.data() + (current / THREADS) * BLOCK_BYTES; }

inline void __syncthreads() { meet(of_block[current / THREADS], THREADS); }
inline float __shfl_xor_sync(u32, float v, int distance) {
  exchanged[current] = v;
  meet(of_warp[current / 32], 32);
  const float other = exchanged[current ^ distance];
  meet(of_warp[current / 32], 32);
  return other;
}
inline u32 cluster_rank() { return current / THREADS; }
inline void cluster_arrive() {
  cluster_generation[current] = of_cluster.generation;
  of_cluster.arrive(NUM_FIBERS);
}
inline void cluster_wait() {
  while (of_cluster.generation == cluster_generation[current]) leave_to_scheduler();
}
inline u32 smem_u32(const void* p) { return (u32)((const char*)p - arena.data()); }
inline void store_remote(u32 address, u32 rank, float v) {
  memcpy(arena.data() + rank * BLOCK_BYTES + address % BLOCK_BYTES, &v, 4);
}
inline void copy_async(u32 to, const Vec* from) { memcpy(arena.data() + to, from, 16); }
inline void wait_copies() {}
inline Vec load_stream(const Vec* p) { return *p; }

inline float ex2(float x) { return exp2f(x); }
inline float lg2(float x) { return log2f(x); }
inline float __uint_as_float(u32 a) { float f; memcpy(&f, &a, 4); return f; }
inline u32 __float_as_uint(float f) { u32 a; memcpy(&a, &f, 4); return a; }
inline float half(u32 a) { _Float16 h; const uint16_t bits = a; memcpy(&h, &bits, 2); return (float)h; }
inline float half_lo(u32 a) { return half(a & 0xffffu); }
inline float half_hi(u32 a) { return half(a >> 16); }
inline u32 bits16(float f) {
  u32 a; memcpy(&a, &f, 4);
  return (a + 0x7fffu + ((a >> 16) & 1u)) >> 16;
}
inline u32 pack2(float lo, float hi) { return bits16(lo) | (bits16(hi) << 16); }
inline u32 max_nan2(u32 a, u32 b) {
  const auto larger = [](u32 x, u32 y) { return std::isnan(half(x)) || half(x) >= half(y) ? x & 0xffffu : y & 0xffffu; };
  return larger(a & 0xffffu, b & 0xffffu) | (larger(a >> 16, b >> 16) << 16);
}

// Runs `body` as every thread of one cluster.
template <typename Body>
void run_cluster(u32 first_block, Body body) {
  static Body* work;
  static std::vector<char> stacks(NUM_FIBERS * STACK);
  work = &body;
  for (int i = 0; i < NUM_FIBERS; ++i) {
    finished[i] = false;
    getcontext(&fibers[i]);
    fibers[i].uc_stack.ss_sp = stacks.data() + i * STACK;
    fibers[i].uc_stack.ss_size = STACK;
    fibers[i].uc_link = nullptr;
    makecontext(&fibers[i], (void (*)())(+[] { (*work)(); finished[current] = true; leave_to_scheduler(); }), 0);
  }
  for (bool any = true; any;) {
    any = false;
    for (int i = 0; i < NUM_FIBERS; ++i) {
      if (finished[i]) continue;
      any = true;
      current = i;
      threadIdx.x = i % THREADS;
      blockIdx.x = first_block + i / THREADS;
      swapcontext(&scheduler, &fibers[i]);
    }
  }
}
