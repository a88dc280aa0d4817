// The stateless dropout masks of `kernels/dropout.rs`: the factor of an element is a function of the
// mask's key and the element's index.
#pragma once

// With `threshold` 0, no element is dropped.
struct Mask {
  unsigned key_low, key_high, threshold;
  float scale;  // of elements that are not dropped
};

__device__ inline unsigned hash32(unsigned x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

__device__ inline float mask_factor(Mask mask, unsigned long long index) {
  if (mask.threshold == 0) return mask.scale;
  const unsigned low = (unsigned)index, high = (unsigned)(index >> 32);
  const unsigned hash = hash32(hash32(low ^ mask.key_low) + mask.key_high + high);
  return hash >= mask.threshold ? mask.scale : 0.0f;
}
