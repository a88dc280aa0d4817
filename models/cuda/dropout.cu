// Dropout, and sums with a residual.

#include "half.h"
#include "mask.h"

// The index of element `i` of padded scores [S, heads, L_q, L_k] in the mask; -1 for padding.
// `segments` holds the first index, the number of queries and the number of keys of each segment.
__device__ long long score_index(unsigned long long i, const long long* segments, unsigned heads,
                                 unsigned query_length, unsigned key_length) {
  const unsigned key = i % key_length;
  i /= key_length;
  const unsigned query = i % query_length;
  i /= query_length;
  const long long* segment = segments + 3 * (i / heads);
  if (query >= segment[1] || key >= segment[2]) return -1;
  return segment[0] + ((long long)(i % heads) * segment[1] + query) * segment[2] + key;
}

template <class T>
__device__ void masked(const T* x, const T* residual, T* y, unsigned long long count, Mask mask,
                       const long long* segments, unsigned heads, unsigned query_length,
                       unsigned key_length) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < count; i += stride) {
    long long index = i;
    if (heads > 0) index = score_index(i, segments, heads, query_length, key_length);
    const float product = to_float(x[i]) * (index < 0 ? 0.0f : mask_factor(mask, index));
    y[i] = from_float<T>(residual != nullptr ? to_float(residual[i]) + product : product);
  }
}

// Multiplies each element with its factor, and adds the residual if it is not null. With `heads` 0,
// an element's index in the mask is its index in `x`; else see `score_index`.
#define DROPOUT(NAME, T)                                                                          \
  extern "C" __global__ void NAME(const T* x, const T* residual, T* y, unsigned long long count,  \
                                  Mask mask, const long long* segments, unsigned heads,           \
                                  unsigned query_length, unsigned key_length) {                   \
    masked(x, residual, y, count, mask, segments, heads, query_length, key_length);               \
  }
DROPOUT(dropout_f32, float)
DROPOUT(dropout_bf16, bf16)
