// Checks each CUDA kernel against plain loops in double precision, on the CPU.

#include "cuda_on_cpu.h"  // first

#include "../../../models/cuda/adamw.cu"
#include "../../../models/cuda/dropout.cu"
#include "../../../models/cuda/norm.cu"
#include "../../../models/cuda/rows.cu"
#include "../../../models/cuda/softmax.cu"

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

// The statistics are checked through the gradients.
void test_norm(unsigned width, unsigned block, bool centred) {
  const unsigned rows = 5, rows_per_block = 2, blocks = 3;
  const std::string name = (centred ? "layer norm of " : "RMS norm of ") + std::to_string(width);
  const float epsilon = 1e-3f;
  const Floats x = random_floats(rows * width), dy = random_floats(x.size());
  const Floats weight = random_floats(width), bias = random_floats(width);
  const float* used_bias = centred ? bias.data() : nullptr;
  Floats y(x.size(), NAN), statistics(2 * rows, NAN), dx(x.size(), NAN);
  Floats partial(blocks * 2 * width, NAN), sums(2 * width, NAN);
  launch(rows, block, [&] { norm_forward(x, weight, used_bias, y, statistics, width, epsilon); });
  launch(rows, block, [&] { norm_backward(x, weight, dy, statistics, dx, width, centred); });
  launch(blocks, block, [&] {
    norm_parameters_backward(x, dy, statistics, partial, rows, width, rows_per_block);
  });
  launch(2 * width / block + 1, block, [&] { sum_partials(partial, sums, blocks, 2 * width); });

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
  expect_rows(f, x, y, dy, dx, width, name);
  Doubles expected(2 * width);
  for (unsigned row = 0; row < rows; ++row) {
    const Doubles n = normed(row_of(x, row, width));
    for (unsigned i = 0; i < width; ++i) {
      expected[i] += dy[row * width + i] * n[i];
      expected[width + i] += dy[row * width + i];
    }
  }
  expect_close(sums, expected, name + ", parameters' backward");
}

void test_rows(unsigned width, unsigned block) {
  const std::string name = "rows of " + std::to_string(width);
  const Indices ids = {3, 0, 6, 3, 3, 5, 0}, rows = {0, 3, 5, 6};
  const Indices starts = {0, 2, 5, 6, 7}, positions = {1, 6, 0, 3, 4, 5, 2};
  const Floats table = random_floats(7 * width), dy = random_floats(7 * width);
  Floats y(7 * width, NAN), gradient(7 * width, 9.0f);
  launch(7, block, [&] { gather_rows(table, ids, y, width); });
  launch(4, block, [&] { sum_rows(dy, rows, starts, positions, gradient, width); });
  Doubles expected, expected_gradient(7 * width, 9.0);
  for (unsigned row : rows) std::fill_n(expected_gradient.begin() + row * width, width, 0.0);
  for (size_t i = 0; i < 7 * width; ++i) {
    const size_t in_table = ids[i / width] * width + i % width;
    expected.push_back(table[in_table]);
    expected_gradient[in_table] += dy[i];
  }
  expect_close(y, expected, name);
  expect_close(gradient, expected_gradient, name + ", backward");
}

// `factor` of `kernels/dropout.rs`, in 64-bit arithmetic modulo 2^32.
float expected_factor(double probability, uint64_t key, uint64_t index) {
  const uint64_t modulus = uint64_t{1} << 32;
  const auto hash = [&](uint64_t x) {
    x = (x ^ (x / 65536)) * 2146121005 % modulus;
    x = (x ^ (x / 32768)) * 2221713035 % modulus;
    return x ^ (x / 65536);
  };
  const uint64_t first = hash((index % modulus) ^ (key % modulus));
  const uint64_t second = hash((first + key / modulus + index / modulus) % modulus);
  return second >= probability * modulus ? 1.0 / (1.0 - probability) : 0.0;
}

// With one index per element, and with padded scores of five segments, [5, 2, 4, 5]. The second
// segment's indices cross 2^32.
void test_dropout(bool padded) {
  const uint64_t key = 0xfedcba9876543210;
  const unsigned low = key % (uint64_t{1} << 32), high = key >> 32, threshold = 0.3 * 4294967296.0;
  const float scale = 1.0 / 0.7;
  const Buffer<long long> segments = {0, 4, 5, 4294967290, 3, 4, 64, 1, 1, 66, 4, 2, 82, 2, 5};
  const Floats x = random_floats(200);
  Buffer<bf16> x_bf16, y_bf16(200);
  for (float value : x) x_bf16.push_back(from_float<bf16>(value));
  Floats y(200, NAN);
  launch(2, 32, [&] {
    const unsigned heads = padded ? 2 : 0;
    dropout_f32(x, y, 200, low, high, threshold, scale, segments, heads, 4, 5);
    dropout_bf16(x_bf16, y_bf16, 200, low, high, threshold, scale, segments, heads, 4, 5);
  });
  uint64_t kept = 0, index = 0;
  for (unsigned i = 0; i < 200; ++i) {
    const long long* segment = &segments[i / 40 * 3];
    if (padded && i % 40 == 0) index = segment[0];
    const bool padding = padded && (i / 5 % 4 >= segment[1] || i % 5 >= segment[2]);
    const float factor = padding ? 0.0f : expected_factor(0.3, key, index++);
    if (i < 64) kept |= (uint64_t)(factor != 0.0f) << i;
    expect(y[i] == x[i] * factor, "dropout of f32");
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

void test_adamw() {
  const Floats gradient = random_floats(100);
  Floats values = random_floats(100), m = random_floats(100), v = random_floats(100, 0.0f, 1.0f);
  Doubles expected;
  for (size_t i = 0; i < 100; ++i) {
    const double g = gradient[i] * 0.5, first = 0.9 * m[i] + 0.1 * g;
    const double second = 0.98 * v[i] + 0.02 * g * g;
    const double step = 0.01 * first / (std::sqrt(second) / 0.7 + 1e-6);
    expected.insert(expected.end(), {values[i] * 0.999 - step, first, second});
  }
  launch(2, 32, [&] {
    adamw(values, m, v, gradient, 100, 0.5f, 0.999f, 0.9f, 0.98f, -0.01f, 0.7f, 1e-6f);
  });
  Floats actual;
  for (size_t i = 0; i < 100; ++i) actual.insert(actual.end(), {values[i], m[i], v[i]});
  expect_close(actual, expected, "AdamW");
}

int main() {
  for (unsigned width : {1, 31, 33, 384, 1000}) {
    const unsigned block = width < 384 ? 64 : width < 1000 ? 128 : 96;
    test_softmax(width, block);
    test_norm(width, block, true);
    test_norm(width, block, false);
    test_rows(width, block);
  }
  test_softmax_of_extreme_values();
  test_dropout(false);
  test_dropout(true);
  test_bf16();
  test_adamw();
  return failures == 0 ? 0 : 1;
}
