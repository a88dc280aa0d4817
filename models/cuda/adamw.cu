// AdamW with the operations of `train/src/optimiser/adamw.rs` in the same order, and the sum of
// squares of gradients. One launch handles all parameters, in chunks.

#include "reduce.h"

// A parameter with its gradient and both moments, and the factors of its step.
struct AdamwTensor {
  float* values;
  float* first;
  float* second;
  const float* gradient;
  unsigned long long count;
  float gradient_scale, keep, first_rest, beta2, second_rest, step, correction, epsilon;
};

// A chunk of a tensor, one per block.
struct Chunk {
  unsigned tensor, index;
};

// Updates parameters and both moments, in place.
extern "C" __global__ void adamw(const AdamwTensor* tensors, const Chunk* chunks,
                                 unsigned chunk_size) {
  const Chunk chunk = chunks[blockIdx.x];
  const AdamwTensor t = tensors[chunk.tensor];
  const unsigned long long start = (unsigned long long)chunk.index * chunk_size;
  const unsigned long long end = start + chunk_size < t.count ? start + chunk_size : t.count;
  for (unsigned long long i = start + threadIdx.x; i < end; i += blockDim.x) {
    const float g = t.gradient[i] * t.gradient_scale;
    const float m = fmaf(t.first_rest, g - t.first[i], t.first[i]);
    const float v = fmaf(t.beta2, t.second[i], t.second_rest * g * g);
    t.first[i] = m;
    t.second[i] = v;
    t.values[i] = fmaf(t.step, m / (sqrtf(v) / t.correction + t.epsilon), t.values[i] * t.keep);
  }
}

// A gradient.
struct SquaresTensor {
  const float* values;
  unsigned long long count;
};

// The sum of squares of each chunk: `sums` [chunks].
extern "C" __global__ void squares(const SquaresTensor* tensors, const Chunk* chunks,
                                   unsigned chunk_size, float* sums) {
  const Chunk chunk = chunks[blockIdx.x];
  const SquaresTensor t = tensors[chunk.tensor];
  const unsigned long long start = (unsigned long long)chunk.index * chunk_size;
  const unsigned long long end = start + chunk_size < t.count ? start + chunk_size : t.count;
  float sum = 0.0f;
  for (unsigned long long i = start + threadIdx.x; i < end; i += blockDim.x) {
    sum += t.values[i] * t.values[i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
