// Reductions over the threads of a block (a multiple of 32 threads, at most 1024). All threads must
// call them, and all get the result. The order of the operations is fixed.
#pragma once

__device__ inline float block_sum(float value) {
  __shared__ float sums[32];
  for (int offset = 16; offset > 0; offset >>= 1) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = value;
  __syncthreads();
  value = 0.0f;
  for (unsigned warp = 0; warp < blockDim.x >> 5; ++warp) value += sums[warp];
  __syncthreads();  // the next call overwrites `sums`
  return value;
}

// Ignores NaNs.
__device__ inline float block_max(float value) {
  __shared__ float maxima[32];
  for (int offset = 16; offset > 0; offset >>= 1) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffU, value, offset));
  }
  if ((threadIdx.x & 31) == 0) maxima[threadIdx.x >> 5] = value;
  __syncthreads();
  value = maxima[0];
  for (unsigned warp = 1; warp < blockDim.x >> 5; ++warp) value = fmaxf(value, maxima[warp]);
  __syncthreads();  // the next call overwrites `maxima`
  return value;
}
