// Tests training with products in fp8 on a GPU: the conversion against its definition on the CPU, products against fp64, loss and gradients
// of a model against fp32, and a short training against the same one in bf16.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>

#include "cyfa/engine/sm90/train_ops.h"
#include "cyfa/ops/dense/cross_entropy.h"
#include "cyfa/train/trainer.h"
#include "tests/gpu/fused_model.h"

namespace cyfa::test {
namespace {

class GpuFp8 : public OnGpu<> {};

enum class Format { kE4M3, kE5M2 };
int64_t filled(int64_t count) { return (count + 15) / 16 * 16; }

// The definition of a format: the values of codes 0, 1, ..., which rise up to the largest finite number.
struct Codes {
  explicit Codes(Format format) {
    const int mantissa = format == Format::kE4M3 ? 3 : 2, bias = format == Format::kE4M3 ? 7 : 15;
    const int count = format == Format::kE4M3 ? 0x7f : 0x7c;  // up to NaN, or infinity
    for (int code = 0; code < count; ++code) {
      const int exponent = code >> mantissa, rest = code & ((1 << mantissa) - 1);
      const int whole = exponent == 0 ? rest : rest + (1 << mantissa);
      values.push_back(std::ldexp(whole, std::max(exponent, 1) - bias - mantissa));
    }
  }
  // The code of the nearest value; of two, the even code.
  int nearest(double x) const {
    const double size = std::abs(x);
    const auto above = static_cast<int>(std::lower_bound(values.begin(), values.end(), size) - values.begin());
    int code = above;
    if (above == static_cast<int>(values.size())) {
      code = above - 1;
    } else if (above > 0) {
      const double up = values[static_cast<size_t>(above)] - size, down = size - values[static_cast<size_t>(above) - 1];
      if (down < up || (down == up && above % 2 == 1)) code = above - 1;
    }
    return std::signbit(x) ? code | 0x80 : code;
  }
  double value(int code) const { return values.at(static_cast<size_t>(code & 0x7f)) * ((code & 0x80) != 0 ? -1 : 1); }

  std::vector<double> values;
};

const Codes& codes_of(Format format) {
  static const Codes four(Format::kE4M3), five(Format::kE5M2);
  return format == Format::kE4M3 ? four : five;
}

// The exponent of the largest power of two by which `most` stays in the format's range; a scale beyond 2^126 has no inverse in fp32.
int scale_exponent(Format format, double most) {
  if (most == 0) return 0;
  int exponent = 126;
  while (std::ldexp(most, exponent) > codes_of(format).values.back()) --exponent;
  return exponent;
}

at::ScalarType type_of(Format format) { return format == Format::kE4M3 ? fused::kFp8 : fused::kFp8Gradient; }

struct Cast {
  at::Tensor codes, transposed;  // bytes on the CPU
  double inverse = 0;
};

// x is on the GPU; its rows may be part of longer ones.
Cast cast(const at::Tensor& x, Format format, int64_t transposed_rows) {
  const int64_t rows = x.size(0), width = x.size(1);
  const auto bytes = [](int64_t r, int64_t c) { return at::full({r, c}, 0xaa, at::TensorOptions(at::kCUDA).dtype(at::kByte)); };
  const at::Tensor codes = bytes(rows, filled(width)), transposed = bytes(width, filled(rows));
  const at::ScalarType type = type_of(format);
  fused::Fp8Matrix out{codes.view(type), transposed.view(type), at::zeros({1}, x.options().dtype(at::kFloat))};
  fused::cast_fp8_to(x, type, transposed_rows, out);
  return {codes.cpu(), transposed.cpu(), out.inverse.item<double>()};
}

// What cast() should return.
Cast defined_cast(const at::Tensor& x, Format format, int64_t transposed_rows) {
  const at::Tensor exact = x.cpu().to(at::kDouble);
  const auto in = exact.accessor<double, 2>();
  const int64_t rows = x.size(0), width = x.size(1);
  const int exponent = scale_exponent(format, exact.abs().max().item<double>());
  Cast out{at::zeros({rows, filled(width)}, at::kByte), at::zeros({width, filled(rows)}, at::kByte), std::ldexp(1.0, -exponent)};
  auto codes = out.codes.accessor<uint8_t, 2>(), transposed = out.transposed.accessor<uint8_t, 2>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      codes[r][c] = static_cast<uint8_t>(codes_of(format).nearest(std::ldexp(in[r][c], exponent)));
      if (r < transposed_rows) transposed[c][r] = codes[r][c];
    }
  }
  return out;
}

void expect_equal(const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  if (at::equal(got, wanted)) return;
  const at::Tensor other = got.ne(wanted).nonzero();
  const int64_t row = other[0][0].item<int64_t>(), column = other[0][1].item<int64_t>();
  ADD_FAILURE() << what << ": " << other.size(0) << " of " << got.numel() << " codes differ, the first at row " << row << ", column "
                << column << ": " << got[row][column].item<int>() << ", wanted " << wanted[row][column].item<int>();
}

void expect_defined_cast(const at::Tensor& x, Format format, int64_t transposed_rows) {
  const Cast got = cast(x, format, transposed_rows), wanted = defined_cast(x, format, transposed_rows);
  EXPECT_EQ(got.inverse, wanted.inverse);
  expect_equal(got.codes, wanted.codes, "codes");
  expect_equal(got.transposed, wanted.transposed, "transposed");
}

std::string name_of(Format format) { return format == Format::kE4M3 ? "e4m3" : "e5m2"; }
at::Tensor half(const at::Tensor& x) { return x.to(at::kBFloat16); }

TEST_F(GpuFp8, CastTakesTheNearestCode) {
  at::manual_seed(1);
  for (const Format format : {Format::kE4M3, Format::kE5M2}) {
    for (const auto& [rows, width, from] : std::vector<std::array<int64_t, 3>>{
             {1, 8, 0}, {16, 16, 0}, {129, 8, 8}, {5, 136, 0}, {300, 72, 16}, {128, 128, 0}, {1000, 3344, 48}, {5000, 24, 0}}) {
      SCOPED_TRACE(name_of(format) + ", " + std::to_string(rows) + " x " + std::to_string(width));
      // Magnitudes far apart, so that some codes are subnormal and some values vanish.
      const at::Tensor all = at::randn({rows, width + from}) * at::pow(2.0, at::randint(-40, 4, {rows, width + from}).to(at::kDouble));
      const at::Tensor x = half(all).to(at::kCUDA).narrow(1, from, width);
      expect_defined_cast(x, format, rows);
      expect_defined_cast(x, format, rows / 2);
    }
  }
}

TEST_F(GpuFp8, CastKeepsEveryCode) {
  for (const Format format : {Format::kE4M3, Format::kE5M2}) {
    for (const int exponent : {0, -30, 60}) {
      SCOPED_TRACE(name_of(format) + " times 2^" + std::to_string(exponent));
      const auto count = static_cast<int64_t>(codes_of(format).values.size());
      const at::Tensor x = at::zeros({2, 128}), wanted = at::zeros({2, 128}, at::kByte);
      for (int64_t code = 0; code < count; ++code) {
        for (const int64_t sign : {0, 1}) {
          const double size = std::ldexp(codes_of(format).values[static_cast<size_t>(code)], exponent);
          x[sign][code] = sign == 1 ? -size : size;
          wanted[sign][code] = code + 128 * sign;
        }
      }
      const Cast got = cast(half(x).to(at::kCUDA), format, 2);
      EXPECT_EQ(got.inverse, std::ldexp(1.0, exponent));
      expect_equal(got.codes, wanted, "codes");
      expect_equal(got.transposed.narrow(1, 0, 2).contiguous(), wanted.t().contiguous(), "transposed");
    }
  }
}

TEST_F(GpuFp8, ScaleIsTheLargestThatFits) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({40, 48}).clamp(-3, 3);
  for (const Format format : {Format::kE4M3, Format::kE5M2}) {
    // At and beside 1.75 times a power of two, huge, tiny and subnormal ones, zero.
    for (const double most : {448.0, 450.0, 446.0, 57344.0, 57600.0, 1.75, 1.7578125, 1.0, 0x1.fep127, 0x1p-126, 0x1p-130, 0x1p-133, 0.0}) {
      SCOPED_TRACE(name_of(format) + ", largest " + std::to_string(most));
      const at::Tensor scaled = x.to(at::kDouble) * (most / 8);
      scaled[17][31] = -most;
      expect_defined_cast(half(scaled).to(at::kCUDA), format, 40);
    }
  }
}

TEST_F(GpuFp8, WhatIsNotFiniteGivesNaN) {
  at::manual_seed(3);
  const at::Tensor other = half(at::randn({64, 96})).to(at::kCUDA);
  for (const double wrong : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const Format format : {Format::kE4M3, Format::kE5M2}) {
      SCOPED_TRACE(name_of(format) + ", " + std::to_string(wrong));
      const at::Tensor x = half(at::randn({48, 96})).to(at::kCUDA);
      x[47][5] = wrong;
      EXPECT_TRUE(std::isnan(cast(x, format, 48).inverse));
      const fused::Fp8Matrix narrow = fused::cast_fp8(x, type_of(format), fused::Fp8Copies::kBoth);
      const auto w = fused::fp8_weight(other, 64, 64);
      w->begin_step();
      const at::Tensor out = at::zeros({48, 64}, x.options());
      fused::fp8_product(narrow, *w, out);
      EXPECT_TRUE(out.isnan().all().item<bool>());
    }
  }
}

at::Tensor wide(const at::Tensor& x) { return x.detach().cpu().to(at::kDouble); }

// The values of x in a format.
at::Tensor rounded(const at::Tensor& x, Format format) {
  const Cast c = defined_cast(x, format, x.size(0));
  const at::Tensor out = at::empty(x.sizes(), at::kDouble);
  auto to = out.accessor<double, 2>();
  const auto from = c.codes.accessor<uint8_t, 2>();
  for (int64_t r = 0; r < x.size(0); ++r) {
    for (int64_t k = 0; k < x.size(1); ++k) to[r][k] = codes_of(format).value(from[r][k]) * c.inverse;
  }
  return out;
}

// The relative rounding error of a number is uniform and below 2^-4 in e4m3 and 2^-3 in e5m2: at most 3.6% and 7.2% in the root mean
// square. Errors of products of random matrices are at most the root of the sum of both factors' squares. Against the product of the
// rounded matrices there is only the rounding of the sums, and of results to bf16 (0.2%).
constexpr double kForward = 0.051, kBackward = 0.081, kSums = 1e-2;

TEST_F(GpuFp8, ProductsAreThoseOfTheRoundedMatrices) {
  at::manual_seed(4);
  for (const auto& [tokens, in, out] : std::vector<std::array<int64_t, 3>>{{64, 32, 48}, {301, 256, 688}, {1000, 2816, 336}}) {
    SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(in) + " to " + std::to_string(out));
    const at::Tensor x = half(at::randn({1, tokens, in}) * 5).to(at::kCUDA).requires_grad_();
    const at::Tensor matrix = half(at::randn({out, in}) * 0.02).to(at::kCUDA);
    const at::Tensor grad = half(at::randn({1, tokens, out}) * 1e-6).to(at::kCUDA);
    fused::Accumulated w{matrix, at::full({out, in}, NAN, matrix.options().dtype(at::kFloat)), fused::fp8_weight(matrix, out, out)};
    w.fp8->begin_step();
    const at::Tensor y = fused::linear(x, w);
    y.backward(grad, true);
    const at::Tensor once = w.grad.clone(), grad_x = x.grad().clone();
    y.backward(grad);

    const at::Tensor x8 = rounded(x.detach()[0], Format::kE4M3), w8 = rounded(matrix, Format::kE4M3), g8 = rounded(grad[0], Format::kE5M2);
    const at::Tensor exact_x = wide(x)[0], exact_w = wide(matrix), exact_g = wide(grad)[0];
    struct Product {
      const char* name;
      at::Tensor got, of_rounded, exact;
      double limit;
    };
    for (const Product& p : {Product{"forward", wide(y)[0], x8.mm(w8.t()), exact_x.mm(exact_w.t()), kForward},
                             Product{"gradient of the input", wide(grad_x)[0], g8.mm(w8), exact_g.mm(exact_w), kBackward},
                             Product{"gradient of the weight", wide(once), g8.t().mm(x8), exact_g.t().mm(exact_x), kBackward}}) {
      EXPECT_LT(distance(p.got, p.of_rounded), kSums) << p.name;
      EXPECT_LT(distance(p.got, p.exact), p.limit) << p.name;
      EXPECT_GT(distance(p.got, p.exact), 1e-2) << p.name << " is not in fp8";
    }
    EXPECT_TRUE(at::equal(w.grad, 2 * once)) << "the second gradient is not added to the first";
    w.fp8->begin_step();
    fused::linear(x, w).backward(grad);
    EXPECT_TRUE(at::equal(w.grad, once)) << "the first gradient of a step does not overwrite, or equal calls give other bits";
  }
}

// The fused projection, against the same in bf16 (which train_gpu_test.cc compares with fp64).
TEST_F(GpuFp8, GatesOfTheProjectionStayInBf16) {
  struct Run {
    std::vector<at::Tensor> results, sums;
    at::Tensor grad_x, clock_grad_x;
  };
  at::manual_seed(5);
  const int64_t D = 64, T = 90, W = 3;
  for (const auto& [H, K, V] : std::vector<std::array<int64_t, 3>>{{4, 16, 32}, {2, 32, 16}}) {
    for (const bool stop : {false, true}) {
      SCOPED_TRACE(std::to_string(H) + " heads" + (stop ? ", clock stops gradients" : ""));
      const int64_t widths[3] = {H * K, H * K, H * V};
      fused::FlowWeights w;
      w.layout = {static_cast<int>(H), static_cast<int>(K), static_cast<int>(V), static_cast<int>(V)};
      w.clock_stop_gradient = stop;
      const auto put = [](fused::Accumulated* to, const at::Tensor& value) {
        *to = {value.to(at::kCUDA), at::zeros(value.sizes(), at::kFloat).to(at::kCUDA)};
      };
      const at::Tensor projection = at::randn({w.layout.columns(), D}) * 0.1;
      projection.narrow(0, w.layout.used(), w.layout.columns() - w.layout.used()).zero_();
      put(&w.projection, half(projection));
      for (size_t i = 0; i < 3; ++i) put(&w.conv[i], at::randn({widths[i], 1, W}));
      put(&w.gate_second, half(at::randn({H * V, V})));
      w.gate_bias = at::zeros({H * V}, at::kFloat).to(at::kCUDA);
      for (fused::Accumulated* s : {&w.dt_bias, &w.A_log, &w.b_bias, &w.d_bias}) put(s, at::randn({H}));
      const at::Tensor values = half(at::randn({2, T, D})).to(at::kCUDA);
      std::vector<at::Tensor> grads;
      const auto run = [&] {
        Run out;
        const std::vector<fused::Accumulated*> all = {&w.projection, &w.conv[0], &w.conv[1], &w.conv[2], &w.gate_second,
                                                      &w.dt_bias,    &w.A_log,   &w.b_bias,  &w.d_bias};
        for (const fused::Accumulated* a : all) a->grad.zero_();
        if (w.projection.fp8) w.projection.fp8->begin_step();
        const at::Tensor x = values.clone().requires_grad_();
        const fused::FlowProjections p = fused::flow_projections(x, w, std::nullopt);
        out.results = {p.q, p.k, p.v, p.gate, p.log_alpha, p.beta, p.delta};
        for (size_t i = grads.size(); i < out.results.size(); ++i) grads.push_back(at::randn_like(out.results[i]));
        torch::autograd::backward(out.results, grads, true);
        for (const fused::Accumulated* a : all) out.sums.push_back(wide(a->grad));
        out.grad_x = wide(x.grad());
        x.mutable_grad().reset();
        torch::autograd::backward({p.delta}, {at::ones_like(p.delta)});
        out.clock_grad_x = wide(x.grad());
        return out;
      };
      const Run wanted = run();
      ASSERT_EQ(fused::fp8_refusal(w.layout.a(), D), "");
      w.projection.fp8 = fused::fp8_weight(w.projection.value, w.layout.a(), w.felt_columns());
      const Run got = run(), again = run();
      for (size_t i = 0; i < wanted.results.size(); ++i) {
        const double far = distance(got.results[i].detach(), wanted.results[i].detach());
        EXPECT_LT(far, i < 4 ? 1.2 * kForward : 2e-3) << "result " << i;
        if (i < 4) {
          EXPECT_GT(far, 1e-2) << "result " << i << " is not in fp8";
        }
        EXPECT_TRUE(at::equal(got.results[i], again.results[i])) << "result " << i;
      }
      EXPECT_LT(distance(got.grad_x, wanted.grad_x), 1.2 * kBackward);
      EXPECT_TRUE(at::equal(got.grad_x, again.grad_x));
      for (size_t i = 0; i < wanted.sums.size(); ++i) {
        EXPECT_LT(distance(got.sums[i], wanted.sums[i]), 1.2 * kBackward) << "gradient " << i;
        EXPECT_TRUE(at::equal(got.sums[i], again.sums[i])) << "gradient " << i;
      }
      EXPECT_EQ(got.clock_grad_x.abs().max().item<double>() == 0, stop);
      EXPECT_LT(distance(got.clock_grad_x, wanted.clock_grad_x), 1.2 * kBackward);
    }
  }
}

struct Step {
  double loss = 0;
  std::vector<at::Tensor> grads;
};

// Loss and gradients of a step with two micro-batches.
Step step(CausalLM& m, const TrainOptions& options, bool packed_sequences) {
  const auto engine = prepare_training(m, options);
  EXPECT_TRUE(engine->notes().empty()) << engine->notes()[0];
  engine->begin_step(std::nullopt);
  Step out;
  for (uint64_t part = 0; part < 2; ++part) {
    const at::Tensor ids = random_ids(m, {3, 301}, part).to(at::kCUDA);
    std::optional<at::Tensor> borders;
    if (packed_sequences) borders = at::tensor({0, 5, 5, 6, 270, 900}, at::kLong);
    const at::Tensor loss = engine->loss(ids.narrow(1, 0, 300), ids.narrow(1, 1, 300), borders) / 2;
    loss.backward();
    out.loss += loss.item<double>();
  }
  for (at::Tensor& p : m.parameters()) {
    out.grads.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    p.mutable_grad().reset();
  }
  return out;
}

Json fp8_config(const Json& keys) {
  Json config = fusable_config({{"intermediate_size", 352}});
  config.update(keys);
  return config;
}

// The parameters with the matrices that fp8 products multiply by rounded to e4m3. Their values times `factor` are rounded, so that each
// factor gives other roundings.
std::vector<at::Tensor> rounded_parameters(const CausalLM& m, double factor) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& p : m.parameters()) out.push_back(p.detach().clone());
  for (const CausalLM::Layer& layer : m.layers()) {
    for (size_t i = 0; i < layer.block->table().specs().size(); ++i) {
      const ParameterSpec& spec = m.table().specs()[layer.first + i];
      bool narrow = spec.role == Role::kMatrix;
      for (const char* other : {"a_proj", "b_proj", "d_proj", "g_proj.1"}) narrow = narrow && spec.name.find(other) == std::string::npos;
      if (!narrow) continue;
      at::Tensor& p = out[layer.first + i];
      const double scale = factor * std::exp2(std::floor(std::log2(448 / (factor * p.abs().max().item<double>()))));
      p = (p * scale).to(at::kFloat8_e4m3fn).to(at::kFloat) / scale;
    }
  }
  return out;
}

// The judge of errors is what rounding the weights alone does to the exact model: their share of the error in the products, which
// activations (in e4m3) have as well, and gradients (in e5m2) twice. So errors may be (1 + 1 + 4)^(1/2) = 2.4 times as large, and a
// gradient of a weight has those of its own product in addition. The limits leave room for the spread of single runs.
TEST_F(GpuFp8, LossAndGradientsOfAModel) {
  const std::vector<ModelCase> cases = {{"Plain", fp8_config(Json::object())},
                                        {"ConvBiasAndClock", fp8_config({{"conv_bias", true}, {"clock_stop_gradient", false}})},
                                        {"TwoHeads", fp8_config({{"num_heads", 2}, {"tie_word_embeddings", true}})}};
  for (const ModelCase& c : cases) {
    for (const bool sequences : {false, true}) {
      SCOPED_TRACE(c.name + (sequences ? ", packed sequences" : ""));
      CausalLM m = model_on_gpu(c.config);
      const auto with = [&](bool layers, bool rows, bool mlp) { return step(m, {fused::kFp8, "sm90", layers, rows, mlp}, sequences); };
      const Step exact = step(m, {std::nullopt, "portable"}, sequences), plain = step(m, {at::kBFloat16, "portable"}, sequences);
      const Step got = with(false, false, false), again = with(false, false, false), recomputed = with(true, false, false);
      const Step rows_again = with(false, true, false), mlp_again = with(false, false, true), both_again = with(false, true, true);
      std::vector<Step> emulated;
      const std::vector<at::Tensor> values = m.parameters();
      for (const double factor : {1.0, 1.13, 1.29, 1.61}) {
        const std::vector<at::Tensor> other = rounded_parameters(m, factor);
        for (size_t id = 0; id < other.size(); ++id) m.parameters()[id] = other[id].clone().requires_grad_();
        emulated.push_back(step(m, {std::nullopt, "portable"}, sequences));
        m.parameters() = values;
      }
      const auto spread = [&](const auto& error) {
        double squares = 0;
        for (const Step& e : emulated) squares += std::pow(error(e), 2) / static_cast<double>(emulated.size());
        return std::sqrt(squares + std::pow(error(plain), 2));
      };
      const double loss_limit = 4 * spread([&](const Step& s) { return s.loss - exact.loss; }) + 2e-3 * exact.loss;
      EXPECT_NEAR(got.loss, exact.loss, loss_limit);
      EXPECT_EQ(got.loss, again.loss);
      EXPECT_NEAR(recomputed.loss, exact.loss, loss_limit);
      for (size_t id = 0; id < got.grads.size(); ++id) {
        const std::string& name = m.table().specs()[id].name;
        ASSERT_EQ(got.grads[id].defined(), plain.grads[id].defined()) << name;
        if (!got.grads[id].defined()) continue;
        const double few = std::sqrt(std::max(1.0, 16.0 / static_cast<double>(got.grads[id].numel())));
        const double limit = 4 * few * spread([&](const Step& s) { return distance(s.grads[id], exact.grads[id]); }) + 0.12;
        EXPECT_LT(distance(got.grads[id], exact.grads[id]), limit) << name;
        EXPECT_TRUE(at::equal(got.grads[id], again.grads[id])) << name << ": equal calls, other bits";
        EXPECT_LT(distance(recomputed.grads[id], exact.grads[id]), limit) << name << ", recomputed";
        EXPECT_TRUE(at::equal(rows_again.grads[id], got.grads[id])) << name << ", rows computed again";
        EXPECT_TRUE(at::equal(mlp_again.grads[id], got.grads[id])) << name << ", MLP computed again";
        EXPECT_TRUE(at::equal(both_again.grads[id], got.grads[id])) << name << ", rows and MLP computed again";
      }
    }
  }
}

TEST_F(GpuFp8, TrainsAsBf16) {
  const auto trained = [](const char* dtype) {
    Recipe r;
    r.steps = 30;
    r.batch = 8;
    r.context = 128;
    r.warmup = 5;
    r.dtype = dtype;
    return trained_by_heart(fp8_config(Json::object()), r);
  };
  const Training narrow = trained("fp8"), again = trained("fp8"), half = trained("bf16");
  ASSERT_FALSE(narrow.losses.empty());
  ASSERT_EQ(narrow.losses.size(), half.losses.size());
  EXPECT_LT(half.losses.back(), 0.97 * half.losses.front());
  // While a batch is learnt by heart a curve that lags by a fraction of a step is off by a part of what has been learnt.
  for (size_t i = 0; i < narrow.losses.size(); ++i) {
    const double limit = 0.03 * half.losses[i] + 0.005 * (half.losses.front() - half.losses[i]);
    EXPECT_NEAR(narrow.losses[i], half.losses[i], limit) << "logged loss " << i;
  }
  EXPECT_EQ(narrow.losses, again.losses);
  EXPECT_NE(narrow.losses, half.losses) << "the products are not in fp8";
  for (size_t id = 0; id < narrow.parameters.size(); ++id) EXPECT_TRUE(at::equal(narrow.parameters[id], again.parameters[id])) << id;
}

TEST_F(GpuFp8, OddSizesAreRefusedInWords) {
  CausalLM odd = model_on_gpu(fusable_config({{"hidden_size", 264}}));
  try {
    prepare_training(odd, {.compute = fused::kFp8, .engine = "sm90"});
    ADD_FAILURE() << "hidden_size 264 is not refused";
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("264"), std::string::npos) << e.what();
  }
  CausalLM part = model_on_gpu(fusable_config(Json::object()));
  const std::vector<std::string> notes = prepare_training(part, {.compute = fused::kFp8, .engine = "sm90"})->notes();
  ASSERT_EQ(notes.size(), 1);
  EXPECT_NE(notes[0].find("256 x 344"), std::string::npos) << notes[0];
}

}  // namespace
}  // namespace cyfa::test
