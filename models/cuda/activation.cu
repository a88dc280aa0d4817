// Bias and activation of the rows of [rows, width], and sums over the rows.

#include "half.h"

// The numbers of the activations; `kernels/activation.rs` has the formulas.
enum { IDENTITY, GELU, GELU_TANH, QUICK_GELU, RELU, SILU, TANH, SIGMOID };

// The value and the derivative of a function.
struct Slope {
  float value, derivative;
};

// x * sigmoid(scale * x).
__device__ inline Slope sigmoid_unit(float x, float scale) {
  const float s = 1.0f / (1.0f + expf(-scale * x));
  return {x * s, s * fmaf(scale * x, 1.0f - s, 1.0f)};
}

__device__ inline Slope activation(float x, unsigned kind) {
  switch (kind) {
    case GELU: {
      const float cdf = 0.5f * (1.0f + erff(x * 0.70710678f));
      return {x * cdf, fmaf(x, 0.3989423f * expf(-0.5f * x * x), cdf)};
    }
    case GELU_TANH: {
      const float t = tanhf(0.7978846f * fmaf(0.044715f * x * x, x, x));
      const float inner = 0.7978846f * fmaf(3.0f * 0.044715f * x, x, 1.0f);
      return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner};
    }
    case QUICK_GELU:
      return sigmoid_unit(x, 1.702f);
    case RELU:
      return {x < 0.0f ? 0.0f : x, x > 0.0f ? 1.0f : 0.0f};
    case SILU:
      return sigmoid_unit(x, 1.0f);
    case TANH: {
      const float t = tanhf(x);
      return {t, 1.0f - t * t};
    }
    case SIGMOID: {
      const float s = 1.0f / (1.0f + expf(-x));
      return {s, s * (1.0f - s)};
    }
    default:
      return {x, 1.0f};
  }
}

template <class T>
__device__ void bias_activation(T* x, const float* bias, T* y, unsigned long long count,
                                unsigned width, unsigned kind) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < count; i += stride) {
    if (bias != nullptr) x[i] = from_float<T>(to_float(x[i]) + bias[i % width]);
    if (y != nullptr) y[i] = from_float<T>(activation(to_float(x[i]), kind).value);
  }
}

// dx = dy * f'(x). Sums dx over each block's `rows_per_block` rows: `partial` [row blocks, width].
// A block has `blockDim.x` columns. `x` may be null for the identity; `dx` and `partial` if they
// are not needed.
template <class T>
__device__ void activation_backward(const T* x, const T* dy, T* dx, float* partial, unsigned rows,
                                    unsigned width, unsigned rows_per_block, unsigned kind) {
  const unsigned column_blocks = (width + blockDim.x - 1) / blockDim.x;
  const unsigned row_block = blockIdx.x / column_blocks;
  const unsigned column = blockIdx.x % column_blocks * blockDim.x + threadIdx.x;
  if (column >= width) return;
  const size_t start = (size_t)row_block * rows_per_block;
  const size_t end = start + rows_per_block < rows ? start + rows_per_block : rows;
  float sum = 0.0f;
  for (size_t row = start; row < end; ++row) {
    const size_t i = row * width + column;
    float gradient = to_float(dy[i]);
    if (kind != IDENTITY) gradient *= activation(to_float(x[i]), kind).derivative;
    if (dx != nullptr) dx[i] = from_float<T>(gradient);
    sum += gradient;
  }
  if (partial != nullptr) partial[(size_t)row_block * width + column] = sum;
}

// `bias_activation` adds the bias (or nothing, if it is null) to `x` in place; `y` = f(x) if `y` is
// not null.
#define ACTIVATION(SUFFIX, T)                                                                     \
  extern "C" __global__ void bias_activation_##SUFFIX(                                            \
      T* x, const float* bias, T* y, unsigned long long count, unsigned width, unsigned kind) {   \
    bias_activation(x, bias, y, count, width, kind);                                              \
  }                                                                                               \
  extern "C" __global__ void activation_backward_##SUFFIX(                                        \
      const T* x, const T* dy, T* dx, float* partial, unsigned rows, unsigned width,              \
      unsigned rows_per_block, unsigned kind) {                                                   \
    activation_backward(x, dy, dx, partial, rows, width, rows_per_block, kind);                   \
  }
ACTIVATION(f32, float)
ACTIVATION(bf16, bf16)
