// Layer norm and RMS norm over the rows of [rows, width], after dropout and the residual sum.

#include "half.h"
#include "mask.h"
#include "reduce.h"

// The rows of s = residual + dropout(x); without a residual if it is null.
template <class T>
struct Sums {
  const T* x;
  const T* residual;
  Mask mask;
  __device__ float at(size_t i) const {
    const float dropped = to_float(x[i]) * mask_factor(mask, i);
    return residual != nullptr ? to_float(residual[i]) + dropped : dropped;
  }
};

template <class T>
__device__ void norm_forward(Sums<T> s, const float* weight, const float* bias, T* y,
                             float* statistics, unsigned width, float epsilon) {
  const size_t start = (size_t)blockIdx.x * width;
  float mean = 0.0f;
  if (bias != nullptr) {
    for (unsigned i = threadIdx.x; i < width; i += blockDim.x) mean += s.at(start + i);
    mean = block_sum(mean) / width;
  }
  float squares = 0.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float centred = s.at(start + i) - mean;
    squares += centred * centred;
  }
  const float inverse = 1.0f / sqrtf(block_sum(squares) / width + epsilon);
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float scaled = (s.at(start + i) - mean) * inverse * weight[i];
    y[start + i] = from_float<T>(bias != nullptr ? scaled + bias[i] : scaled);
  }
  if (threadIdx.x == 0) {
    statistics[2 * (size_t)blockIdx.x] = mean;
    statistics[2 * (size_t)blockIdx.x + 1] = inverse;
  }
}

template <class T>
__device__ void norm_backward(Sums<T> s, const float* weight, const T* dy, const float* statistics,
                              T* dx, T* dresidual, unsigned width, unsigned centred) {
  const size_t start = (size_t)blockIdx.x * width;
  const float mean = statistics[2 * (size_t)blockIdx.x];
  const float inverse = statistics[2 * (size_t)blockIdx.x + 1];
  float sum = 0.0f, products = 0.0f;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float g = to_float(dy[start + i]) * weight[i];
    sum += g;
    products += g * ((s.at(start + i) - mean) * inverse);
  }
  const float mean_g = centred ? block_sum(sum) / width : 0.0f;
  const float mean_product = block_sum(products) / width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    const float n = (s.at(start + i) - mean) * inverse;
    const float g = to_float(dy[start + i]) * weight[i];
    const float ds = inverse * (g - mean_g - n * mean_product);
    if (dresidual != nullptr) dresidual[start + i] = from_float<T>(ds);
    if (dx != nullptr) dx[start + i] = from_float<T>(ds * mask_factor(s.mask, start + i));
  }
}

template <class T>
__device__ void norm_parameters_backward(Sums<T> s, const T* dy, const float* statistics,
                                         float* partial, unsigned rows, unsigned width,
                                         unsigned rows_per_block) {
  const size_t start = (size_t)blockIdx.x * rows_per_block;
  const size_t end = start + rows_per_block < rows ? start + rows_per_block : rows;
  partial += 2 * (size_t)blockIdx.x * width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    float weight = 0.0f, bias = 0.0f;
    for (size_t row = start; row < end; ++row) {
      const float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
      const float g = to_float(dy[row * width + i]);
      weight += g * ((s.at(row * width + i) - mean) * inverse);
      bias += g;
    }
    partial[i] = weight;
    partial[(size_t)width + i] = bias;
  }
}

// norm_forward: layer norm y = (s - mean) / sqrt(mean((s - mean)^2) + epsilon) * weight + bias, or
// RMS norm y = s / sqrt(mean(s^2) + epsilon) * weight if `bias` is null. `statistics` [rows, 2] gets
// the mean (0 for RMS norm) and the inverse root. One block per row.
//
// norm_backward: with n = (s - mean) * inverse and g = dy * weight,
// ds = inverse * (g - mean(g) - n * mean(g * n)), without mean(g) if not `centred` (RMS norm). `ds`
// is the gradient of the residual. One block per row. `dx` or `dresidual` may be null.
//
// norm_parameters_backward sums the contributions of each block's `rows_per_block` rows to the
// gradients of the weight and the bias: `partial` [blocks, 2, width].
#define NORM(SUFFIX, T)                                                                           \
  extern "C" __global__ void norm_forward_##SUFFIX(                                               \
      const T* x, const T* residual, Mask mask, const float* weight, const float* bias, T* y,     \
      float* statistics, unsigned width, float epsilon) {                                         \
    norm_forward(Sums<T>{x, residual, mask}, weight, bias, y, statistics, width, epsilon);        \
  }                                                                                               \
  extern "C" __global__ void norm_backward_##SUFFIX(                                              \
      const T* x, const T* residual, Mask mask, const float* weight, const T* dy,                 \
      const float* statistics, T* dx, T* dresidual, unsigned width, unsigned centred) {           \
    norm_backward(Sums<T>{x, residual, mask}, weight, dy, statistics, dx, dresidual, width,       \
                  centred);                                                                       \
  }                                                                                               \
  extern "C" __global__ void norm_parameters_backward_##SUFFIX(                                   \
      const T* x, const T* residual, Mask mask, const T* dy, const float* statistics,             \
      float* partial, unsigned rows, unsigned width, unsigned rows_per_block) {                   \
    norm_parameters_backward(Sums<T>{x, residual, mask}, dy, statistics, partial, rows, width,    \
                             rows_per_block);                                                     \
  }
NORM(f32, float)
NORM(bf16, bf16)

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
