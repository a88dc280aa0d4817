// AdamW, with the operations of `train/src/optimiser/adamw.rs` in the same order.

// Updates parameters and both moments, in place.
extern "C" __global__ void adamw(float* values, float* first, float* second, const float* gradient,
                                 unsigned long long count, float gradient_scale, float keep,
                                 float beta1, float beta2, float step, float correction,
                                 float epsilon) {
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i < count; i += stride) {
    const float g = gradient[i] * gradient_scale;
    const float m = fmaf(1.0f - beta1, g - first[i], first[i]);
    const float v = fmaf(beta2, second[i], (1.0f - beta2) * g * g);
    first[i] = m;
    second[i] = v;
    values[i] = fmaf(step, m / (sqrtf(v) / correction + epsilon), values[i] * keep);
  }
}
