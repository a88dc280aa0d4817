// bf16 values without CUDA's headers, so that g++ compiles the kernels, too.
#pragma once

struct bf16 {
  unsigned short bits;
};

__device__ inline float to_float(float x) { return x; }

__device__ inline float to_float(bf16 x) {
  union {
    unsigned bits;
    float value;
  } wide;
  wide.bits = (unsigned)x.bits << 16;
  return wide.value;
}

template <class T>
__device__ inline T from_float(float x);

template <>
__device__ inline float from_float<float>(float x) {
  return x;
}

// Rounds to the nearest value, ties to even.
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  union {
    float value;
    unsigned bits;
  } wide;
  wide.value = x;
  bf16 half;
  if (x != x) {
    half.bits = 0x7fc0;
  } else {
    half.bits = (unsigned short)((wide.bits + 0x7fffU + ((wide.bits >> 16) & 1)) >> 16);
  }
  return half;
}
