// Attention over packed segments, in tiles with a running maximum and sum as in FlashAttention
// (arXiv 2205.14135). `kernels/attention.rs` defines the segments, the causal mask and the indices of
// the dropout mask.
//
// A row of a head is split over SPLIT neighbouring threads, each with 32 of its elements: chunk c of
// four elements belongs to thread c % SPLIT. In the forward pass and in the backward pass of queries,
// the rows of a block are queries, and keys pass through shared memory; in the backward pass of keys
// and values it is the other way round. No two threads write one value.

#include "half.h"
#include "mask.h"

// The rows in shared memory.
#define TILE 32
// The scores that are computed before the running maximum changes.
#define SCORES 8
// The four-element chunks of a thread.
#define CHUNKS 8

// A block's segment, and the block's first row in it.
struct Tile {
  long long query, num_queries, key, num_keys, first_score, first_row;
};

// A bias that is added to the scores, and the gradient of each score. Null pointers for none.
struct Bias {
  const float* values;
  float* gradients;
  // The queries and keys of a bias [heads, queries, keys] that all segments share; 0 keys for a bias
  // with one value per score.
  unsigned queries, keys;
};

// The inputs and options. Strides are between the rows of the matrices.
template <class T>
struct Heads {
  const T *q, *k, *v;
  unsigned q_stride, kv_stride, heads, size;
  float scale;
  unsigned causal;
  Mask mask;
  Bias bias;
};

template <int SPLIT>
using SharedRows = float4 (&)[TILE][CHUNKS * SPLIT];

// The number of keys that query `i` of a segment attends to.
__device__ inline long long visible_keys(const Tile& tile, long long i, unsigned causal) {
  if (i >= tile.num_queries) return 0;
  if (!causal) return tile.num_keys;
  const long long visible = i + 1 + tile.num_keys - tile.num_queries;
  return visible < 0 ? 0 : visible < tile.num_keys ? visible : tile.num_keys;
}

// The index of the first score of query `i` of a head. The scores of a segment are [heads, queries,
// keys].
__device__ inline long long score_row(const Tile& tile, unsigned head, long long i) {
  return tile.first_score + (head * tile.num_queries + i) * tile.num_keys;
}

// The index of the first bias of query `i` of a head.
__device__ inline long long bias_row(const Bias& bias, const Tile& tile, unsigned head,
                                     long long i) {
  if (bias.keys == 0) return score_row(tile, head, i);
  return ((long long)head * bias.queries + i) * bias.keys;
}

// Copies `count` rows of a head to shared memory; missing rows and columns become 0.
template <int SPLIT, class T>
__device__ void load_rows(const T* x, size_t stride, unsigned size, long long count,
                          SharedRows<SPLIT> rows) {
  const unsigned width = 4 * CHUNKS * SPLIT;
  for (unsigned i = threadIdx.x; i < TILE * width; i += blockDim.x) {
    const unsigned row = i / width, column = i % width;
    const bool exists = row < count && column < size;
    reinterpret_cast<float*>(&rows[row][0])[column] =
        exists ? to_float(x[row * stride + column]) : 0.0f;
  }
}

// A thread's part of a row.
template <int SPLIT>
struct Part {
  float4 values[CHUNKS];

  __device__ void clear() {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) values[c] = {0.0f, 0.0f, 0.0f, 0.0f};
  }

  template <class T>
  __device__ void load(const T* x, bool exists, unsigned size) {
    const unsigned part = threadIdx.x % SPLIT;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const unsigned column = 4 * (c * SPLIT + part);
      if (exists && column < size) {  // the size is a multiple of 4
        values[c] = {to_float(x[column]), to_float(x[column + 1]), to_float(x[column + 2]),
                     to_float(x[column + 3])};
      } else {
        values[c] = {0.0f, 0.0f, 0.0f, 0.0f};
      }
    }
  }

  template <class T>
  __device__ void store(T* x, float factor, unsigned size) const {
    const unsigned part = threadIdx.x % SPLIT;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const unsigned column = 4 * (c * SPLIT + part);
      if (column >= size) continue;
      x[column] = from_float<T>(values[c].x * factor);
      x[column + 1] = from_float<T>(values[c].y * factor);
      x[column + 2] = from_float<T>(values[c].z * factor);
      x[column + 3] = from_float<T>(values[c].w * factor);
    }
  }

  // The product with a whole row. All threads of a warp must call it.
  __device__ float dot(const float4* row) const {
    row += threadIdx.x % SPLIT;
    float x = 0.0f, y = 0.0f, z = 0.0f, w = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const float4 other = row[c * SPLIT];
      x = fmaf(values[c].x, other.x, x);
      y = fmaf(values[c].y, other.y, y);
      z = fmaf(values[c].z, other.z, z);
      w = fmaf(values[c].w, other.w, w);
    }
    return over_parts((x + y) + (z + w));
  }

  // The sum of a value over the threads of a row.
  __device__ static float over_parts(float value) {
#pragma unroll
    for (int offset = 1; offset < SPLIT; offset *= 2) {
      value += __shfl_xor_sync(0xffffffffU, value, offset);
    }
    return value;
  }

  __device__ void scale(float factor) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      values[c].x *= factor;
      values[c].y *= factor;
      values[c].z *= factor;
      values[c].w *= factor;
    }
  }

  __device__ void add(float factor, const float4* row) {
    row += threadIdx.x % SPLIT;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const float4 other = row[c * SPLIT];
      values[c].x = fmaf(factor, other.x, values[c].x);
      values[c].y = fmaf(factor, other.y, values[c].y);
      values[c].z = fmaf(factor, other.z, values[c].z);
      values[c].w = fmaf(factor, other.w, values[c].w);
    }
  }

  // The product with another part, summed over the row.
  __device__ float dot(const Part& other) const {
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      sum = fmaf(values[c].x, other.values[c].x, sum);
      sum = fmaf(values[c].y, other.values[c].y, sum);
      sum = fmaf(values[c].z, other.values[c].z, sum);
      sum = fmaf(values[c].w, other.values[c].w, sum);
    }
    return over_parts(sum);
  }
};

// Sets y [queries, heads * size], and log_sums [queries, heads]: the log-sum-exp of the scores.
template <int SPLIT, class T>
__device__ void attention_forward(Heads<T> in, const Tile* tiles, T* y, float* log_sums) {
  __shared__ float4 keys[TILE][CHUNKS * SPLIT];
  __shared__ float4 values[TILE][CHUNKS * SPLIT];
  const Tile tile = tiles[blockIdx.x / in.heads];
  const unsigned head = blockIdx.x % in.heads, column = head * in.size;
  const long long rows = blockDim.x / SPLIT, i = tile.first_row + threadIdx.x / SPLIT;
  const long long last = tile.first_row + rows < tile.num_queries ? tile.first_row + rows - 1
                                                                  : tile.num_queries - 1;
  const long long end = visible_keys(tile, last, in.causal);
  const long long visible = visible_keys(tile, i, in.causal);
  const bool exists = i < tile.num_queries;
  const size_t row = tile.query + i;
  const long long first_score = score_row(tile, head, i);
  const long long first_bias = bias_row(in.bias, tile, head, i);
  Part<SPLIT> query, sum;
  query.load(in.q + row * in.q_stride + column, exists, in.size);
  query.scale(in.scale);
  sum.clear();
  float top = -INFINITY, total = 0.0f;
  for (long long start = 0; start < end; start += TILE) {
    const size_t key = (tile.key + start) * (size_t)in.kv_stride + column;
    load_rows<SPLIT>(in.k + key, in.kv_stride, in.size, tile.num_keys - start, keys);
    load_rows<SPLIT>(in.v + key, in.kv_stride, in.size, tile.num_keys - start, values);
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < TILE; first += SCORES) {
      float scores[SCORES], new_top = top;
#pragma unroll
      for (int j = 0; j < SCORES; ++j) {
        const long long key_index = start + first + j;
        float score = query.dot(keys[first + j]);
        if (key_index >= visible) {
          score = -INFINITY;
        } else if (in.bias.values) {
          score += in.bias.values[first_bias + key_index];
        }
        scores[j] = score;
        new_top = fmaxf(new_top, scores[j]);
      }
      // Without a visible key, all weights are exp(-inf - 0).
      const float base = new_top == -INFINITY ? 0.0f : new_top;
      if (new_top != top) {
        const float shrink = expf(top - base);
        total *= shrink;
        sum.scale(shrink);
        top = new_top;
      }
#pragma unroll
      for (int j = 0; j < SCORES; ++j) {
        const float weight = expf(scores[j] - base);
        total += weight;
        const float factor = mask_factor(in.mask, first_score + start + first + j);
        sum.add(weight * factor, values[first + j]);
      }
    }
    __syncthreads();
  }
  if (!exists) return;
  sum.store(y + row * in.heads * in.size + column, total == 0.0f ? 0.0f : 1.0f / total, in.size);
  if (threadIdx.x % SPLIT == 0) {
    log_sums[row * in.heads + head] = total == 0.0f ? -INFINITY : top + logf(total);
  }
}

// Sets the gradient of the queries (rows `q_stride` apart), the gradients of the scores of visible
// keys if there is a bias, and products [queries, heads]: the sum of y * dy, which is the mean of the
// weights' gradients.
template <int SPLIT, class T>
__device__ void attention_backward_queries(Heads<T> in, const Tile* tiles, const T* y, const T* dy,
                                           const float* log_sums, float* products, T* dq) {
  __shared__ float4 keys[TILE][CHUNKS * SPLIT];
  __shared__ float4 values[TILE][CHUNKS * SPLIT];
  const Tile tile = tiles[blockIdx.x / in.heads];
  const unsigned head = blockIdx.x % in.heads, column = head * in.size;
  const long long rows = blockDim.x / SPLIT, i = tile.first_row + threadIdx.x / SPLIT;
  const long long last = tile.first_row + rows < tile.num_queries ? tile.first_row + rows - 1
                                                                  : tile.num_queries - 1;
  const long long end = visible_keys(tile, last, in.causal);
  const long long visible = visible_keys(tile, i, in.causal);
  const bool exists = i < tile.num_queries;
  const size_t row = tile.query + i, output = row * in.heads * in.size + column;
  const long long first_score = score_row(tile, head, i);
  const long long first_bias = bias_row(in.bias, tile, head, i);
  Part<SPLIT> query, gradient, sum;
  query.load(in.q + row * in.q_stride + column, exists, in.size);
  gradient.load(dy + output, exists, in.size);
  sum.load(y + output, exists, in.size);
  const float product = sum.dot(gradient);
  sum.clear();
  float log_sum = -INFINITY;
  if (exists) {
    log_sum = log_sums[row * in.heads + head];
    if (threadIdx.x % SPLIT == 0) products[row * in.heads + head] = product;
  }
  for (long long start = 0; start < end; start += TILE) {
    const size_t key = (tile.key + start) * (size_t)in.kv_stride + column;
    load_rows<SPLIT>(in.k + key, in.kv_stride, in.size, tile.num_keys - start, keys);
    load_rows<SPLIT>(in.v + key, in.kv_stride, in.size, tile.num_keys - start, values);
    __syncthreads();
#pragma unroll 2
    for (int j = 0; j < TILE; ++j) {
      float score = in.scale * query.dot(keys[j]);
      const float dweight = gradient.dot(values[j]);
      const bool is_visible = start + j < visible;
      if (is_visible && in.bias.values) score += in.bias.values[first_bias + start + j];
      // Without a visible key, the log-sum-exp is -inf.
      const float weight = is_visible && log_sum > -INFINITY ? expf(score - log_sum) : 0.0f;
      const float factor = mask_factor(in.mask, first_score + start + j);
      const float dscore = weight * fmaf(dweight, factor, -product);
      if (is_visible && in.bias.gradients && threadIdx.x % SPLIT == 0) {
        in.bias.gradients[first_score + start + j] = dscore;
      }
      sum.add(dscore * in.scale, keys[j]);
    }
    __syncthreads();
  }
  if (exists) sum.store(dq + row * in.q_stride + column, 1.0f, in.size);
}

// Sets the gradients of keys and values (rows `kv_stride` apart).
template <int SPLIT, class T>
__device__ void attention_backward_keys(Heads<T> in, const Tile* tiles, const T* dy,
                                        const float* log_sums, const float* products, T* dk,
                                        T* dv) {
  __shared__ float4 queries[TILE][CHUNKS * SPLIT];
  __shared__ float4 gradients[TILE][CHUNKS * SPLIT];
  __shared__ float query_log_sums[TILE], query_products[TILE];
  const Tile tile = tiles[blockIdx.x / in.heads];
  const unsigned head = blockIdx.x % in.heads, column = head * in.size;
  const long long j = tile.first_row + threadIdx.x / SPLIT;
  const bool exists = j < tile.num_keys;
  const size_t row = tile.key + j, width = (size_t)in.heads * in.size;
  const long long first_score = score_row(tile, head, 0) + j;
  const long long first_bias = bias_row(in.bias, tile, head, 0) + j;
  const unsigned bias_stride = in.bias.keys == 0 ? tile.num_keys : in.bias.keys;
  Part<SPLIT> key, value, key_sum, value_sum;
  key.load(in.k + row * in.kv_stride + column, exists, in.size);
  value.load(in.v + row * in.kv_stride + column, exists, in.size);
  key_sum.clear();
  value_sum.clear();
  // The first query that sees the block's first key.
  long long start = in.causal ? tile.first_row + tile.num_queries - tile.num_keys : 0;
  if (start < 0) start = 0;
  for (; start < tile.num_queries; start += TILE) {
    const size_t first = tile.query + start;
    const long long count = tile.num_queries - start;
    load_rows<SPLIT>(in.q + first * in.q_stride + column, in.q_stride, in.size, count, queries);
    load_rows<SPLIT>(dy + first * width + column, width, in.size, count, gradients);
    if (threadIdx.x < TILE && threadIdx.x < count) {
      const size_t index = (first + threadIdx.x) * in.heads + head;
      query_log_sums[threadIdx.x] = log_sums[index];
      query_products[threadIdx.x] = products[index];
    }
    __syncthreads();
#pragma unroll 2
    for (int i = 0; i < TILE; ++i) {
      float score = in.scale * key.dot(queries[i]);
      const float dweight = value.dot(gradients[i]);
      if (exists && j < visible_keys(tile, start + i, in.causal) &&
          query_log_sums[i] > -INFINITY) {
        if (in.bias.values) score += in.bias.values[first_bias + (start + i) * bias_stride];
        const float weight = expf(score - query_log_sums[i]);
        const float factor = mask_factor(in.mask, first_score + (start + i) * tile.num_keys);
        value_sum.add(weight * factor, gradients[i]);
        key_sum.add(weight * fmaf(dweight, factor, -query_products[i]) * in.scale, queries[i]);
      }
    }
    __syncthreads();
  }
  if (!exists) return;
  key_sum.store(dk + row * in.kv_stride + column, 1.0f, in.size);
  value_sum.store(dv + row * in.kv_stride + column, 1.0f, in.size);
}

#define INPUTS(T)                                                                                 \
  const T *q, const T *k, const T *v, unsigned q_stride, unsigned kv_stride, unsigned heads,      \
      unsigned size, float scale, unsigned causal, Mask mask, Bias bias, const Tile *tiles
#define HEADS(T) \
  Heads<T> { q, k, v, q_stride, kv_stride, heads, size, scale, causal, mask, bias }

// A block handles the rows of one tile in one head: tile b / heads, head b % heads. A block has 64
// threads, thus 64 / SPLIT rows.
#define ATTENTION(SUFFIX, T, SPLIT)                                                               \
  extern "C" __global__ void attention_forward_##SUFFIX(INPUTS(T), T* y, float* log_sums) {       \
    attention_forward<SPLIT>(HEADS(T), tiles, y, log_sums);                                       \
  }                                                                                               \
  extern "C" __global__ void attention_backward_queries_##SUFFIX(                                 \
      INPUTS(T), const T* y, const T* dy, const float* log_sums, float* products, T* dq) {        \
    attention_backward_queries<SPLIT>(HEADS(T), tiles, y, dy, log_sums, products, dq);            \
  }                                                                                               \
  extern "C" __global__ void attention_backward_keys_##SUFFIX(                                    \
      INPUTS(T), const T* dy, const float* log_sums, const float* products, T* dk, T* dv) {       \
    attention_backward_keys<SPLIT>(HEADS(T), tiles, dy, log_sums, products, dk, dv);              \
  }
ATTENTION(f32_1, float, 1)
ATTENTION(f32_2, float, 2)
ATTENTION(f32_4, float, 4)
ATTENTION(bf16_1, bf16, 1)
ATTENTION(bf16_2, bf16, 2)
ATTENTION(bf16_4, bf16, 4)

// Sets the gradient of a bias [heads, queries, keys] that all segments share: the sum of the gradients
// of their scores, in the order of the segments. A segment has its first score, its number of queries
// and its number of keys. The grid covers the bias.
extern "C" __global__ void attention_shared_bias(const float* scores, const long long* segments,
                                                 unsigned count, unsigned heads, unsigned queries,
                                                 unsigned keys, float* gradient) {
  const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= heads * queries * keys) return;
  const long long j = index % keys, i = index / keys % queries, head = index / keys / queries;
  float sum = 0.0f;
  for (unsigned s = 0; s < count; ++s) {
    const long long first = segments[3 * s], num_queries = segments[3 * s + 1];
    const long long num_keys = segments[3 * s + 2];
    if (i < num_queries && j < num_keys) {
      sum += scores[first + (head * num_queries + i) * num_keys + j];
    }
  }
  gradient[index] = sum;
}
