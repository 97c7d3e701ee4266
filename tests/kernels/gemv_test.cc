// gemv_cpu against sums in double, for every instruction set of this machine.
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <vector>

#include "cyfa/kernels/dense/gemv.h"

namespace cyfa::dense {
namespace {

std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> found;
  for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (cpu::isa_available(isa)) found.push_back(isa);
  }
  return found;
}

struct Case {
  Gemv g;
  std::vector<float> wide, x, interleaved, bias, y;
  std::vector<uint16_t> narrow;

  Case(int64_t batch, int64_t in, int64_t out, WeightType type, bool with_bias = true, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& to, int64_t count) {
      to.resize(static_cast<size_t>(count));
      for (float& value : to) value = normal(random);
    };
    fill(wide, in * out);
    for (float& value : wide) {
      const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      narrow.push_back(bits);
      if (type == WeightType::kBf16) value = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
    fill(x, batch * in);
    fill(bias, out);
    y.assign(static_cast<size_t>(batch * out), std::numeric_limits<float>::quiet_NaN());
    interleaved.resize(static_cast<size_t>(interleaved_floats(batch, in)));
    interleave_vectors(batch, in, x.data(), interleaved.data());
    g.batch = batch;
    g.in = in;
    g.out = out;
    g.type = type;
    g.weight = type == WeightType::kF32 ? static_cast<const void*>(wide.data()) : narrow.data();
    g.x = interleaved.data();
    g.bias = with_bias ? bias.data() : nullptr;
    g.y = y.data();
  }
};

TEST(Gemv, MatchesSumsInDouble) {
  for (const cpu::Isa isa : isas()) {
    for (const WeightType type : {WeightType::kF32, WeightType::kBf16}) {
      for (const int64_t in : {1, 7, 15, 16, 17, 48, 100, 1024}) {
        for (const int64_t batch : {0, 1, 2, 3, 4, 5, 7, 8, 13}) {
          const int64_t out = 21;
          Case c(batch, in, out, type, in % 2 == 0);
          gemv_cpu(c.g, 0, out, isa);
          for (int64_t b = 0; b < batch; ++b) {
            for (int64_t r = 0; r < out; ++r) {
              double sum = c.g.bias == nullptr ? 0 : c.bias[static_cast<size_t>(r)], size = 1;
              for (int64_t i = 0; i < in; ++i) {
                const double product = static_cast<double>(c.wide[static_cast<size_t>(r * in + i)]) * c.x[static_cast<size_t>(b * in + i)];
                sum += product;
                size += std::abs(product);
              }
              ASSERT_NEAR(c.y[static_cast<size_t>(b * out + r)], sum, 4e-7 * size)
                  << cpu::isa_name(isa) << " in " << in << " batch " << batch;
            }
          }
        }
      }
    }
  }
}

// Decoding relies on this: the results of a sequence do not depend on the rest of the batch.
TEST(Gemv, BitsDependNeitherOnTheBatchNorOnTheSplit) {
  for (const cpu::Isa isa : isas()) {
    for (const WeightType type : {WeightType::kF32, WeightType::kBf16}) {
      const int64_t in = 203, out = 37, batch = 11;
      Case all(batch, in, out, type);
      gemv_cpu(all.g, 0, out, isa);
      for (int64_t b = 0; b < batch; ++b) {
        Case one(batch, in, out, type);
        std::vector<float> interleaved(static_cast<size_t>(interleaved_floats(1, in)));
        interleave_vectors(1, in, one.x.data() + b * in, interleaved.data());
        one.g.batch = 1;
        one.g.x = interleaved.data();
        for (int64_t begin = 0; begin < out; begin += 5) gemv_cpu(one.g, begin, std::min(begin + 5, out), isa);
        for (int64_t r = 0; r < out; ++r) {
          EXPECT_EQ(std::bit_cast<uint32_t>(one.y[static_cast<size_t>(r)]),
                    std::bit_cast<uint32_t>(all.y[static_cast<size_t>(b * out + r)]));
        }
      }
    }
  }
}

TEST(Gemv, WritesItsRowsOnly) {
  Case c(3, 20, 9, WeightType::kF32);
  gemv_cpu(c.g, 2, 7, cpu::best_isa());
  for (int64_t b = 0; b < 3; ++b) {
    for (int64_t r = 0; r < 9; ++r) EXPECT_EQ(std::isnan(c.y[static_cast<size_t>(b * 9 + r)]), r < 2 || r >= 7);
  }
}

TEST(Gemv, RefusesRowsThatAreNotThere) {
  Case c(1, 4, 4, WeightType::kF32);
  EXPECT_THROW(gemv_cpu(c.g, -1, 2, cpu::best_isa()), std::invalid_argument);
  EXPECT_THROW(gemv_cpu(c.g, 3, 2, cpu::best_isa()), std::invalid_argument);
  EXPECT_THROW(gemv_cpu(c.g, 0, 5, cpu::best_isa()), std::invalid_argument);
}

}  // namespace
}  // namespace cyfa::dense
