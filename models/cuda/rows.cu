// Rows of a table [table rows, width], and their gradients.

// y [ids, width]: row `ids[b]` of the table, for each block b.
extern "C" __global__ void gather_rows(const float* table, const unsigned* ids, float* y,
                                       unsigned width) {
  table += (size_t)ids[blockIdx.x] * width;
  y += (size_t)blockIdx.x * width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) y[i] = table[i];
}

// Block b sets row `rows[b]` of the table's gradient to the sum of the rows of `dy` that
// `positions[starts[b]..starts[b + 1]]` names, in this order. Other rows keep their values.
extern "C" __global__ void sum_rows(const float* dy, const unsigned* rows, const unsigned* starts,
                                    const unsigned* positions, float* table_gradient,
                                    unsigned width) {
  const unsigned start = starts[blockIdx.x], end = starts[blockIdx.x + 1];
  table_gradient += (size_t)rows[blockIdx.x] * width;
  for (unsigned i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (unsigned p = start; p < end; ++p) sum += dy[(size_t)positions[p] * width + i];
    table_gradient[i] = sum;
  }
}
