// Softmax over the rows of [rows, width]. One block per row.

#include "reduce.h"

// Entries of minus infinity become 0, and so does a row without other entries.
extern "C" __global__ void softmax(const float* x, float* y, unsigned width) {
  x += (size_t)blockIdx.x * width;
  y += (size_t)blockIdx.x * width;
  float max = -INFINITY;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) max = fmaxf(max, x[i]);
  max = block_max(max);
  if (max == -INFINITY) max = 0.0f;
  float sum = 0.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float e = expf(x[i] - max);
    y[i] = e;
    sum += e;
  }
  sum = block_sum(sum);
  if (sum == 0.0f) sum = 1.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) y[i] /= sum;
}

// dx = y * (dy - sum(y * dy)), with the sum over the row.
extern "C" __global__ void softmax_backward(const float* y, const float* dy, float* dx,
                                            unsigned width) {
  y += (size_t)blockIdx.x * width;
  dy += (size_t)blockIdx.x * width;
  dx += (size_t)blockIdx.x * width;
  float sum = 0.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) sum += y[i] * dy[i];
  sum = block_sum(sum);
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) dx[i] = y[i] * (dy[i] - sum);
}
