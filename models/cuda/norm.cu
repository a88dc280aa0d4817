// Layer norm and RMS norm over the rows of [rows, width].

#include "reduce.h"

// Layer norm: y = (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * weight + bias.
// RMS norm if `bias` is null: y = x / sqrt(mean(x^2) + epsilon) * weight.
// `statistics` [rows, 2] gets the mean (0 for RMS norm) and the inverse root. One block per row.
// (CUDA has a `norm` of its own.)
extern "C" __global__ void norm_forward(const float* x, const float* weight, const float* bias,
                                        float* y, float* statistics, unsigned width,
                                        float epsilon) {
  x += (size_t)blockIdx.x * width;
  y += (size_t)blockIdx.x * width;
  float mean = 0.0f;
  if (bias != nullptr) {
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) mean += x[i];
    mean = block_sum(mean) / width;
  }
  float squares = 0.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    squares += (x[i] - mean) * (x[i] - mean);
  }
  const float inverse = 1.0f / sqrtf(block_sum(squares) / width + epsilon);
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float scaled = (x[i] - mean) * inverse * weight[i];
    y[i] = bias != nullptr ? scaled + bias[i] : scaled;
  }
  if (threadIdx.x == 0) {
    statistics[2 * (size_t)blockIdx.x] = mean;
    statistics[2 * (size_t)blockIdx.x + 1] = inverse;
  }
}

// With n = (x - mean) * inverse and g = dy * weight:
// dx = inverse * (g - mean(g) - n * mean(g * n)), without mean(g) if not `centred` (RMS norm).
// One block per row.
extern "C" __global__ void norm_backward(const float* x, const float* weight, const float* dy,
                                         const float* statistics, float* dx, unsigned width,
                                         int centred) {
  x += (size_t)blockIdx.x * width;
  dy += (size_t)blockIdx.x * width;
  dx += (size_t)blockIdx.x * width;
  const float mean = statistics[2 * (size_t)blockIdx.x];
  const float inverse = statistics[2 * (size_t)blockIdx.x + 1];
  float sum = 0.0f, products = 0.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float g = dy[i] * weight[i];
    sum += g;
    products += g * ((x[i] - mean) * inverse);
  }
  const float mean_g = centred ? block_sum(sum) / width : 0.0f;
  const float mean_product = block_sum(products) / width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float n = (x[i] - mean) * inverse;
    dx[i] = inverse * (dy[i] * weight[i] - mean_g - n * mean_product);
  }
}

// Sums the contributions of each block's `rows_per_block` rows to the gradients of the weight and
// the bias: `partial` [blocks, 2, width].
extern "C" __global__ void norm_parameters_backward(const float* x, const float* dy,
                                                    const float* statistics, float* partial,
                                                    unsigned rows, unsigned width,
                                                    unsigned rows_per_block) {
  const size_t start = (size_t)blockIdx.x * rows_per_block;
  const size_t end = start + rows_per_block < rows ? start + rows_per_block : rows;
  partial += 2 * (size_t)blockIdx.x * width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    float weight = 0.0f, bias = 0.0f;
    for (size_t row = start; row < end; ++row) {
      const float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
      const float g = dy[row * width + i];
      weight += g * ((x[row * width + i] - mean) * inverse);
      bias += g;
    }
    partial[i] = weight;
    partial[(size_t)width + i] = bias;
  }
}

// Sums `partial` [blocks, columns] over the blocks, in order: `sums` [columns]. One thread per
// column.
extern "C" __global__ void sum_partials(const float* partial, float* sums, unsigned blocks,
                                        unsigned columns) {
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0.0f;
  for (unsigned block = 0; block < blocks; ++block) {
    sum += partial[(size_t)block * columns + column];
  }
  sums[column] = sum;
}
