// Checks each CUDA kernel against plain loops in double precision, on the CPU.

#include "cuda_on_cpu.h"  // first

#include "../../../models/cuda/kernels.cu"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

// A vector that can be passed to a kernel.
template <class T>
struct Buffer : std::vector<T> {
  using std::vector<T>::vector;
  operator T*() { return this->data(); }
  operator const T*() const { return this->data(); }
};
using Floats = Buffer<float>;
using Indices = Buffer<unsigned>;
using Doubles = std::vector<double>;

int failures = 0;

void expect(bool condition, const std::string& name) {
  if (!condition) ++failures, std::printf("FAILED: %s\n", name.c_str());
}

// Expects differences below 1e-5, relative to values above 1.
void expect_close(const Floats& actual, const Doubles& expected, const std::string& name) {
  bool close = actual.size() == expected.size();
  for (size_t i = 0; close && i < actual.size(); ++i) {
    close = std::abs(actual[i] - expected[i]) < 1e-5 * std::max(1.0, std::abs(expected[i]));
    if (!close) std::printf("%zu: %.9g instead of %.9g\n", i, actual[i], expected[i]);
  }
  expect(close, name);
}

Floats random_floats(size_t count, float from = -2.0f, float to = 2.0f) {
  static std::minstd_rand generator;
  Floats values(count);
  for (float& x : values) x = std::uniform_real_distribution<float>(from, to)(generator);
  return values;
}

Doubles row_of(const Floats& x, size_t row, size_t width) {
  return Doubles(x.begin() + row * width, x.begin() + (row + 1) * width);
}

// Expects y = f(x) for each row, and as dx the gradient of sum(dy * y) by central differences.
template <class F>
void expect_rows(F f, const Floats& x, const Floats& y, const Floats& dy, const Floats& dx,
                 size_t width, const std::string& name) {
  const double step = 1e-5;
  Doubles expected, gradient;
  for (size_t row = 0; row < x.size() / width; ++row) {
    Doubles values = row_of(x, row, width);
    for (double value : f(values)) expected.push_back(value);
    for (double& value : values) {
      value += step;
      const Doubles above = f(values);
      value -= 2.0 * step;
      const Doubles below = f(values);
      value += step;
      gradient.push_back(0.0);
      for (size_t i = 0; i < width; ++i) {
        gradient.back() += dy[row * width + i] * (above[i] - below[i]) / (2.0 * step);
      }
    }
  }
  expect_close(y, expected, name);
  expect_close(dx, gradient, name + ", backward");
}

Doubles expected_softmax(Doubles x) {
  double sum = 0.0;
  for (double value : x) sum += std::exp(value);
  for (double& value : x) value = sum == 0.0 ? 0.0 : std::exp(value) / sum;
  return x;
}

// Row 1 is minus infinity, and so are some values of row 2.
void test_softmax(unsigned width, unsigned block) {
  Floats x = random_floats(3 * width), dy = random_floats(3 * width);
  std::fill_n(x.begin() + width, width, -INFINITY);
  for (unsigned i = 1; i < width; i += 3) x[2 * width + i] = -INFINITY;
  Floats y(x.size(), NAN), dx(x.size(), NAN);
  launch(3, block, [&] { softmax(x, y, width); });
  launch(3, block, [&] { softmax_backward(y, dy, dx, width); });
  expect_rows(expected_softmax, x, y, dy, dx, width, "softmax of " + std::to_string(width));
}

void test_softmax_of_extreme_values() {
  Floats x = {1e30f, -1e30f, 1e30f, NAN, -INFINITY, 0.0f}, y(6);
  launch(2, 32, [&] { softmax(x, y, 3); });
  expect(y[0] == 0.5f && y[1] == 0.0f && y[2] == 0.5f, "softmax of large values");
  expect(std::isnan(y[3]) && std::isnan(y[4]) && std::isnan(y[5]), "softmax of NaN");
}

// The mask of the tests, with probability 0.3.
const uint64_t KEY = 0xfedcba9876543210;
const Mask MASK = {0x76543210, 0xfedcba98, (unsigned)(0.3 * 4294967296.0), (float)(1.0 / 0.7)};

// `factor` of `kernels/dropout.rs`, in 64-bit arithmetic modulo 2^32.
float expected_factor(uint64_t index) {
  const uint64_t modulus = uint64_t{1} << 32;
  const auto hash = [&](uint64_t x) {
    x = (x ^ (x / 65536)) * 2146121005 % modulus;
    x = (x ^ (x / 32768)) * 2221713035 % modulus;
    return x ^ (x / 65536);
  };
  const uint64_t first = hash((index % modulus) ^ (KEY % modulus));
  const uint64_t second = hash((first + KEY / modulus + index / modulus) % modulus);
  return second >= 0.3 * modulus ? 1.0 / 0.7 : 0.0;
}

// The statistics are checked through the gradients. With a residual, the sums that are normalised
// have a dropout mask.
void test_norm(unsigned width, unsigned block, bool centred, bool residual) {
  const unsigned rows = 5, rows_per_block = 2, blocks = 3;
  const std::string name = (centred ? "layer norm of " : "RMS norm of ") + std::to_string(width);
  const float epsilon = 1e-3f;
  const Mask mask = residual ? MASK : Mask{0, 0, 0, 1.0f};
  const Floats x = random_floats(rows * width), dy = random_floats(x.size());
  const Floats other = random_floats(x.size());
  const float* used_residual = residual ? other.data() : nullptr;
  Floats sums(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    sums[i] = residual ? x[i] * expected_factor(i) + other[i] : x[i];
  }
  const Floats weight = random_floats(width), bias = random_floats(width);
  const float* used_bias = centred ? bias.data() : nullptr;
  Floats y(x.size(), NAN), statistics(2 * rows, NAN), dx(x.size(), NAN), ds(x.size(), NAN);
  Floats partial(blocks * 2 * width, NAN), gradients(2 * width, NAN);
  launch(rows, block, [&] {
    norm_forward_f32(x, used_residual, mask, weight, used_bias, y, statistics, width, epsilon);
  });
  launch(rows, block, [&] {
    norm_backward_f32(x, used_residual, mask, weight, dy, statistics, dx, ds, width, centred);
  });
  launch(blocks, block, [&] {
    norm_parameters_backward_f32(x, used_residual, mask, dy, statistics, partial, rows, width,
                                 rows_per_block);
  });
  launch(2 * width / block + 1, block, [&] {
    sum_partials(partial, gradients, blocks, 2 * width);
  });

  const auto normed = [&](Doubles x) {
    double mean = 0.0, squares = 0.0;
    for (double value : x) mean += centred ? value / width : 0.0;
    for (double value : x) squares += (value - mean) * (value - mean) / width;
    for (double& value : x) value = (value - mean) / std::sqrt(squares + epsilon);
    return x;
  };
  const auto f = [&](const Doubles& x) {
    Doubles y = normed(x);
    for (unsigned i = 0; i < width; ++i) y[i] = y[i] * weight[i] + (centred ? bias[i] : 0.0);
    return y;
  };
  expect_rows(f, sums, y, dy, ds, width, name);
  for (size_t i = 0; i < x.size(); ++i) {
    expect(dx[i] == ds[i] * (residual ? expected_factor(i) : 1.0f), name + ", gradient of x");
  }
  Doubles expected(2 * width);
  for (unsigned row = 0; row < rows; ++row) {
    const Doubles n = normed(row_of(sums, row, width));
    for (unsigned i = 0; i < width; ++i) {
      expected[i] += dy[row * width + i] * n[i];
      expected[width + i] += dy[row * width + i];
    }
  }
  expect_close(gradients, expected, name + ", parameters' backward");
}

// Each kind of activation with a bias: y = f(x + bias), dx and the bias's gradient.
void test_activations(unsigned width, unsigned block) {
  const unsigned rows = 7, rows_per_block = 3, blocks = 3 * ((width + block - 1) / block);
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  for (unsigned kind = IDENTITY; kind <= SIGMOID; ++kind) {
    const std::string name = "activation " + std::to_string(kind);
    const Floats bias = random_floats(width), dy = random_floats(rows * width);
    Floats x = random_floats(rows * width), y(x.size(), NAN), dx(x.size(), NAN);
    Floats partial(3 * width, NAN), sums(width, NAN);
    Floats hidden = x;
    for (size_t i = 0; i < x.size(); ++i) hidden[i] += bias[i % width];
    launch(2, 32, [&] { bias_activation_f32(x, bias, y, x.size(), width, kind); });
    launch(blocks, block, [&] {
      activation_backward_f32(x, dy, dx, partial, rows, width, rows_per_block, kind);
    });
    launch(width / block + 1, block, [&] { sum_partials(partial, sums, 3, width); });
    const auto f = [&](Doubles x) {
      for (double& v : x) {
        const double inner = std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
        v = kind == GELU         ? v * 0.5 * std::erfc(-v / std::sqrt(2.0))
            : kind == GELU_TANH  ? 0.5 * v * (1.0 + std::tanh(inner))
            : kind == QUICK_GELU ? v * sigmoid(1.702 * v)
            : kind == RELU       ? std::max(v, 0.0)
            : kind == SILU       ? v * sigmoid(v)
            : kind == TANH       ? std::tanh(v)
            : kind == SIGMOID    ? sigmoid(v)
                                 : v;
      }
      return x;
    };
    expect(std::equal(x.begin(), x.end(), hidden.begin()), name + ", bias");
    expect_rows(f, hidden, y, dy, dx, width, name);
    Doubles expected(width);
    for (size_t i = 0; i < dx.size(); ++i) expected[i % width] += dx[i];
    expect_close(sums, expected, name + ", gradient of the bias");
  }
}

void test_rows(unsigned width, unsigned block) {
  const std::string name = "rows of " + std::to_string(width);
  const Indices ids = {3, 0, 6, 3, 3, 5, 0}, rows = {0, 3, 5, 6};
  const Indices starts = {0, 2, 5, 6, 7}, positions = {1, 6, 0, 3, 4, 5, 2};
  const Floats dy = random_floats(7 * width);
  Floats gradient(7 * width, 9.0f);
  launch(4, block, [&] { sum_rows_f32(dy, rows, starts, positions, gradient, width); });
  Doubles expected(7 * width, 9.0);
  for (unsigned row : rows) std::fill_n(expected.begin() + row * width, width, 0.0);
  for (size_t i = 0; i < 7 * width; ++i) expected[ids[i / width] * width + i % width] += dy[i];
  expect_close(gradient, expected, name);
}

// Spans overlap.
void test_span_means(unsigned width, unsigned block) {
  const Indices spans = {0, 2, 1, 4, 6, 1};
  const Floats x = random_floats(7 * width), dy = random_floats(3 * width);
  Floats y(3 * width, NAN), dx(7 * width, NAN);
  launch(3, block, [&] { span_means_f32(x, spans, y, width); });
  launch(7, block, [&] { span_means_backward_f32(dy, spans, dx, width, 3); });
  Doubles means(3 * width), gradient(7 * width);
  for (unsigned span = 0; span < 3; ++span) {
    for (unsigned i = 0; i < spans[2 * span + 1] * width; ++i) {
      const unsigned row = spans[2 * span] * width;
      means[span * width + i % width] += (double)x[row + i] / spans[2 * span + 1];
      gradient[row + i] += (double)dy[span * width + i % width] / spans[2 * span + 1];
    }
  }
  expect_close(y, means, "means of spans");
  expect_close(dx, gradient, "means of spans, backward");
}

// With one index per element, and with padded scores of five segments, [5, 2, 4, 5]. The second
// segment's indices cross 2^32.
void test_dropout(bool padded) {
  const Buffer<long long> segments = {0, 4, 5, 4294967290, 3, 4, 64, 1, 1, 66, 4, 2, 82, 2, 5};
  const Floats x = random_floats(200), residual = random_floats(200);
  Buffer<bf16> x_bf16, y_bf16(200);
  for (float value : x) x_bf16.push_back(from_float<bf16>(value));
  Floats y(200, NAN), sums(200, NAN);
  launch(2, 32, [&] {
    const unsigned heads = padded ? 2 : 0;
    dropout_f32(x, nullptr, y, 200, MASK, segments, heads, 4, 5);
    dropout_f32(x, residual, sums, 200, MASK, segments, heads, 4, 5);
    dropout_bf16(x_bf16, nullptr, y_bf16, 200, MASK, segments, heads, 4, 5);
  });
  uint64_t kept = 0, index = 0;
  for (unsigned i = 0; i < 200; ++i) {
    const long long* segment = &segments[i / 40 * 3];
    if (padded && i % 40 == 0) index = segment[0];
    const bool padding = padded && (i / 5 % 4 >= segment[1] || i % 5 >= segment[2]);
    const float factor = padding ? 0.0f : expected_factor(index++);
    if (i < 64) kept |= (uint64_t)(factor != 0.0f) << i;
    expect(y[i] == x[i] * factor, "dropout of f32");
    expect(sums[i] == residual[i] + y[i], "dropout with a residual");
    const bf16 expected = from_float<bf16>(to_float(x_bf16[i]) * factor);
    expect(y_bf16[i].bits == expected.bits, "dropout of bf16");
  }
  expect(padded || kept == 0xe7abebe7cbf6f7fe, "the mask's first 64 elements");
}

// Ties go to even; the largest values round to infinity.
void test_bf16() {
  const uint32_t table[][2] = {{0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
                               {0x3f817fff, 0x3f81}, {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80},
                               {0xff800000, 0xff80}, {0x00008001, 0x0001}, {0x7fffffff, 0x7fc0}};
  for (const auto& [bits, expected] : table) {
    expect(from_float<bf16>(std::bit_cast<float>(bits)).bits == expected, "rounding to bf16");
  }
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(bf16{(unsigned short)bits});
    expect(std::isnan(value) || from_float<bf16>(value).bits == bits, "bf16 to float and back");
  }
}

// Two tensors in chunks of 64 values.
void test_adamw() {
  const Floats gradient = random_floats(100);
  Floats values = random_floats(100), m = random_floats(100), v = random_floats(100, 0.0f, 1.0f);
  Doubles expected;
  double expected_squares[3] = {};
  for (size_t i = 0; i < 100; ++i) {
    const double g = gradient[i] * 0.5, first = 0.9 * m[i] + 0.1 * g;
    const double second = 0.98 * v[i] + 0.02 * g * g;
    const double step = 0.01 * first / (std::sqrt(second) / 0.7 + 1e-6);
    expected.insert(expected.end(), {values[i] * 0.999 - step, first, second});
    expected_squares[i < 64 ? 0 : i < 70 ? 1 : 2] += gradient[i] * gradient[i];
  }
  const auto tensor = [&](size_t start, size_t count) {
    return AdamwTensor{&values[start], &m[start], &v[start], &gradient[start], count,  0.5f,
                       0.999f,         0.1f,      0.98f,     0.02f,            -0.01f, 0.7f, 1e-6f};
  };
  const Buffer<AdamwTensor> tensors = {tensor(0, 70), tensor(70, 30)};
  const Buffer<SquaresTensor> squared = {{&gradient[0], 70}, {&gradient[70], 30}};
  const Buffer<Chunk> chunks = {{0, 0}, {0, 1}, {1, 0}};
  Floats sums(3, NAN);
  launch(3, 32, [&] { adamw(tensors, chunks, 64); });
  launch(3, 64, [&] { squares(squared, chunks, 64, sums); });
  Floats actual;
  for (size_t i = 0; i < 100; ++i) actual.insert(actual.end(), {values[i], m[i], v[i]});
  expect_close(actual, expected, "AdamW");
  expect_close(sums, Doubles(expected_squares, expected_squares + 3), "sums of squares");
}

// Packed and padded segments, longer and shorter than a tile, with queries that see no key, and rows
// outside every segment. With a bias of -inf for some keys, and for all keys of one query.
enum BiasKind { NO_BIAS, SHARED_BIAS, BIAS_PER_SCORE };
template <class Forward, class Queries, class Keys>
void test_attention(std::string name, unsigned split, unsigned size, bool causal, BiasKind kind,
                    Forward forward, Queries backward_queries, Keys backward_keys) {
  const unsigned heads = 2, width = heads * size, block = 64, rows = 110;
  const float scale = 0.3f;
  // The first row and the number of queries, then of keys.
  const unsigned segments[][4] = {{0, 70, 0, 70}, {70, 3, 71, 35}, {75, 34, 106, 2}, {109, 1, 108, 0}};
  const auto matrix = [&] { return random_floats(rows * width, -1.0f, 1.0f); };
  const Floats q = matrix(), k = matrix(), v = matrix(), dy = matrix();
  Floats y(rows * width, 9.0f), log_sums(rows * heads, NAN), products(rows * heads, NAN);
  Floats dq(rows * width, 9.0f), dk(rows * width, 9.0f), dv(rows * width, 9.0f);
  Buffer<Tile> query_tiles, key_tiles;
  Doubles expected_y(rows * width, 9.0), expected_dq(rows * width, 9.0);
  Doubles expected_dk(rows * width, 9.0), expected_dv(rows * width, 9.0);
  name += kind == SHARED_BIAS ? ", shared bias" : kind == BIAS_PER_SCORE ? ", bias" : "";
  const unsigned shared_queries = 71, shared_keys = 72;
  Buffer<long long> shared_segments;
  long long num_scores = 0;
  for (const auto& [query, num_queries, key, num_keys] : segments) {
    shared_segments.insert(shared_segments.end(), {num_scores, num_queries, num_keys});
    num_scores += heads * num_queries * num_keys;
  }
  const size_t shared_size = heads * shared_queries * shared_keys;
  Floats biases = random_floats(kind == SHARED_BIAS ? shared_size : num_scores, -1.0f, 1.0f);
  for (size_t index = 0; index < biases.size(); index += 7) biases[index] = -INFINITY;
  // All keys of the second query of the first head.
  const unsigned stride = kind == SHARED_BIAS ? shared_keys : 70;
  std::fill_n(biases.begin() + stride, stride, -INFINITY);
  Floats score_gradients(num_scores, 0.0f), bias_gradients(shared_size, NAN);
  Doubles expected_biases(biases.size());
  Bias bias = {};
  if (kind != NO_BIAS) {
    bias = {&biases[0], &score_gradients[0], shared_queries, kind == SHARED_BIAS ? shared_keys : 0};
  }
  long long first_score = 0;
  for (const auto& [query, num_queries, key, num_keys] : segments) {
    for (unsigned row = 0; row < num_queries; row += block / split) {
      query_tiles.push_back({query, num_queries, key, num_keys, first_score, row});
    }
    for (unsigned row = 0; row < num_keys; row += block / split) {
      key_tiles.push_back({query, num_queries, key, num_keys, first_score, row});
    }
    std::fill_n(expected_y.begin() + query * width, num_queries * width, 0.0);
    std::fill_n(expected_dq.begin() + query * width, num_queries * width, 0.0);
    std::fill_n(expected_dk.begin() + key * width, num_keys * width, 0.0);
    std::fill_n(expected_dv.begin() + key * width, num_keys * width, 0.0);
    for (unsigned head = 0; head < heads; ++head) {
      for (unsigned i = 0; i < num_queries; ++i) {
        const size_t row = (query + i) * width + head * size;
        const long long visible =
            causal ? std::max(0LL, (long long)i + 1 + num_keys - num_queries) : num_keys;
        Doubles weights(visible), gradients(visible);
        double total = 0.0, mean = 0.0;
        const size_t first_bias = kind == SHARED_BIAS
                                      ? (head * shared_queries + i) * shared_keys
                                      : first_score + (head * num_queries + i) * num_keys;
        for (long long j = 0; j < visible; ++j) {
          for (unsigned e = 0; e < size; ++e) {
            weights[j] += (double)scale * q[row + e] * k[(key + j) * width + head * size + e];
          }
          if (kind != NO_BIAS) weights[j] += biases[first_bias + j];
          total += weights[j] = std::exp(weights[j]);
        }
        if (total == 0.0) continue;
        for (long long j = 0; j < visible; ++j) {
          const size_t other = (key + j) * width + head * size;
          const double factor =
              expected_factor(first_score + (head * num_queries + i) * num_keys + j);
          weights[j] /= total;
          for (unsigned e = 0; e < size; ++e) {
            expected_y[row + e] += weights[j] * factor * v[other + e];
            expected_dv[other + e] += weights[j] * factor * dy[row + e];
            gradients[j] += factor * dy[row + e] * v[other + e];
          }
          mean += weights[j] * gradients[j];
        }
        for (long long j = 0; j < visible; ++j) {
          const size_t other = (key + j) * width + head * size;
          const double score_gradient = weights[j] * (gradients[j] - mean);
          const double gradient = score_gradient * scale;
          if (kind != NO_BIAS) expected_biases[first_bias + j] += score_gradient;
          for (unsigned e = 0; e < size; ++e) {
            expected_dq[row + e] += gradient * k[other + e];
            expected_dk[other + e] += gradient * q[row + e];
          }
        }
      }
    }
    first_score += heads * num_queries * num_keys;
  }
  launch(query_tiles.size() * heads, block, [&] {
    forward(q, k, v, width, width, heads, size, scale, causal, MASK, bias, query_tiles, y,
            log_sums);
  });
  launch(query_tiles.size() * heads, block, [&] {
    backward_queries(q, k, v, width, width, heads, size, scale, causal, MASK, bias, query_tiles, y,
                     dy, log_sums, products, dq);
  });
  launch(key_tiles.size() * heads, block, [&] {
    backward_keys(q, k, v, width, width, heads, size, scale, causal, MASK, bias, key_tiles, dy,
                  log_sums, products, dk, dv);
  });
  expect_close(y, expected_y, name);
  expect_close(dq, expected_dq, name + ", queries' backward");
  expect_close(dk, expected_dk, name + ", keys' backward");
  expect_close(dv, expected_dv, name + ", values' backward");
  if (kind == BIAS_PER_SCORE) {
    expect_close(score_gradients, expected_biases, name + ", bias's backward");
  } else if (kind == SHARED_BIAS) {
    launch((shared_size + block - 1) / block, block, [&] {
      attention_shared_bias(score_gradients, shared_segments, shared_segments.size() / 3, heads,
                            shared_queries, shared_keys, bias_gradients);
    });
    expect_close(bias_gradients, expected_biases, name + ", bias's backward");
  }
}

int main() {
  for (unsigned width : {1, 31, 33, 384, 1000}) {
    const unsigned block = width < 384 ? 64 : width < 1000 ? 128 : 96;
    test_softmax(width, block);
    test_norm(width, block, true, false);
    test_norm(width, block, false, true);
    test_norm(width, block, true, true);
    test_rows(width, block);
  }
  test_softmax_of_extreme_values();
  test_activations(40, 32);
  test_span_means(40, 32);
  test_dropout(false);
  test_dropout(true);
  test_bf16();
  test_adamw();
  for (bool causal : {false, true}) {
    const std::string name = causal ? "causal attention" : "attention";
    // Every size of a head and every kind of bias occur twice.
    test_attention(name, 1, 24, causal, causal ? SHARED_BIAS : BIAS_PER_SCORE,
                   attention_forward_f32_1, attention_backward_queries_f32_1,
                   attention_backward_keys_f32_1);
    test_attention(name, 2, 64, causal, causal ? BIAS_PER_SCORE : NO_BIAS, attention_forward_f32_2,
                   attention_backward_queries_f32_2, attention_backward_keys_f32_2);
    test_attention(name, 4, 72, causal, causal ? NO_BIAS : SHARED_BIAS, attention_forward_f32_4,
                   attention_backward_queries_f32_4, attention_backward_keys_f32_4);
  }
  return failures == 0 ? 0 : 1;
}
