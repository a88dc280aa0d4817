// Dropout with the stateless masks of `kernels/dropout.rs`: the factor of an element is a function
// of the mask's key and the element's index.

#include "half.h"

__device__ unsigned hash32(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

__device__ float mask_factor(unsigned long long index, unsigned key_low, unsigned key_high,
                             unsigned threshold, float scale) {
  const unsigned low = (unsigned)index, high = (unsigned)(index >> 32);
  const unsigned hash = hash32(hash32(low ^ key_low) + key_high + high);
  return hash >= threshold ? scale : 0.0f;
}

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
__device__ void masked(const T* x, T* y, unsigned long long count, unsigned key_low,
                       unsigned key_high, unsigned threshold, float scale,
                       const long long* segments, unsigned heads, unsigned query_length,
                       unsigned key_length) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < count; i += stride) {
    long long index = i;
    if (heads > 0) index = score_index(i, segments, heads, query_length, key_length);
    const float factor =
        index < 0 ? 0.0f : mask_factor(index, key_low, key_high, threshold, scale);
    y[i] = from_float<T>(to_float(x[i]) * factor);
  }
}

// Multiplies each element with its factor. With `heads` 0, an element's index in the mask is its
// index in `x`; else see `score_index`.
#define DROPOUT(NAME, T)                                                                        \
  extern "C" __global__ void NAME(const T* x, T* y, unsigned long long count, unsigned key_low, \
                                  unsigned key_high, unsigned threshold, float scale,           \
                                  const long long* segments, unsigned heads,                    \
                                  unsigned query_length, unsigned key_length) {                 \
    masked(x, y, count, key_low, key_high, threshold, scale, segments, heads, query_length,     \
           key_length);                                                                         \
  }
DROPOUT(dropout_f32, float)
DROPOUT(dropout_bf16, bf16)
