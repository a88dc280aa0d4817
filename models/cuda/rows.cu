// Sums of rows of [rows, width].

#include "half.h"

// Block b sets row `rows[b]` of `sums` to the sum of the rows of `x` that
// `positions[starts[b]..starts[b + 1]]` names, in this order. Other rows keep their values.
template <class T>
__device__ void sum_rows(const T* x, const unsigned* rows, const unsigned* starts,
                         const unsigned* positions, float* sums, unsigned width) {
  const unsigned start = starts[blockIdx.x], end = starts[blockIdx.x + 1];
  sums += (size_t)rows[blockIdx.x] * width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (unsigned p = start; p < end; ++p) sum += to_float(x[(size_t)positions[p] * width + i]);
    sums[i] = sum;
  }
}

// Block b sets row b of `means` to the mean of the rows of `x` in span b. `spans` holds the first row
// and the number of rows of each span.
template <class T>
__device__ void span_means(const T* x, const unsigned* spans, T* means, unsigned width) {
  const unsigned start = spans[2 * blockIdx.x], count = spans[2 * blockIdx.x + 1];
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (unsigned row = start; row < start + count; ++row) {
      sum += to_float(x[(size_t)row * width + i]);
    }
    means[(size_t)blockIdx.x * width + i] = from_float<T>(sum / count);
  }
}

// Block b sets row b of `dx`, given the gradients of the means of all spans.
template <class T>
__device__ void span_means_backward(const T* dmeans, const unsigned* spans, T* dx, unsigned width,
                                    unsigned num_spans) {
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (unsigned span = 0; span < num_spans; ++span) {
      const unsigned start = spans[2 * span], count = spans[2 * span + 1];
      if (blockIdx.x >= start && blockIdx.x < start + count) {
        sum += to_float(dmeans[(size_t)span * width + i]) / count;
      }
    }
    dx[(size_t)blockIdx.x * width + i] = from_float<T>(sum);
  }
}

#define ROWS(SUFFIX, T)                                                                           \
  extern "C" __global__ void sum_rows_##SUFFIX(const T* x, const unsigned* rows,                  \
                                               const unsigned* starts, const unsigned* positions, \
                                               float* sums, unsigned width) {                     \
    sum_rows(x, rows, starts, positions, sums, width);                                            \
  }                                                                                               \
  extern "C" __global__ void span_means_##SUFFIX(const T* x, const unsigned* spans, T* means,     \
                                                 unsigned width) {                                \
    span_means(x, spans, means, width);                                                           \
  }                                                                                               \
  extern "C" __global__ void span_means_backward_##SUFFIX(                                        \
      const T* dmeans, const unsigned* spans, T* dx, unsigned width, unsigned num_spans) {        \
    span_means_backward(dmeans, spans, dx, width, num_spans);                                     \
  }
ROWS(f32, float)
ROWS(bf16, bf16)
