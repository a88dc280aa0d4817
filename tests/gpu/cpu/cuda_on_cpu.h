// Runs CUDA kernels on the CPU, for tests: a thread per CUDA thread, one block after the other.
// Include this header before the `.cu` files. Kernels may use shared memory, `__syncthreads` and
// `__shfl_xor_sync` of floats with the whole warp, in one-dimensional grids and blocks.
#pragma once

#include <barrier>
#include <cmath>
#include <cstddef>
#include <deque>
#include <optional>
#include <thread>
#include <vector>

#define __global__
#define __device__
// One block runs at a time, so that static memory is the block's. It keeps the values of the block
// before, like uninitialised memory.
#define __shared__ static

struct alignas(16) float4 {
  float x, y, z, w;
};

inline thread_local struct Index {
  unsigned x;
} threadIdx, blockIdx, blockDim, gridDim;

inline std::optional<std::barrier<>> block_barrier;
inline std::deque<std::barrier<>> warp_barriers;
// Two values per thread, used in turn: before a thread writes a slot again, it passes the barrier
// of the other slot, and then all threads have read the first one.
inline std::vector<float> exchange[2];
inline thread_local unsigned turn;

inline void __syncthreads() { block_barrier->arrive_and_wait(); }

inline float __shfl_xor_sync(unsigned, float value, int lane_mask) {
  std::vector<float>& values = exchange[turn ^= 1];
  values[threadIdx.x] = value;
  warp_barriers[threadIdx.x / 32].arrive_and_wait();
  return values[threadIdx.x ^ lane_mask];
}

// Calls `kernel` (a function without arguments) in each thread of `grid` blocks of `block` threads
// (a multiple of 32).
template <class Kernel>
void launch(unsigned grid, unsigned block, Kernel kernel) {
  block_barrier.emplace(block);
  warp_barriers.clear();
  for (unsigned warp = 0; warp < block / 32; ++warp) warp_barriers.emplace_back(32);
  for (auto& values : exchange) values.assign(block, 0.0f);
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < block; ++thread) {
    threads.emplace_back([=] {
      threadIdx.x = thread, blockDim.x = block, gridDim.x = grid;
      for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        kernel();
        __syncthreads();
      }
    });
  }
}
