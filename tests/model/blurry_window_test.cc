// Tests blurry window attention against the paper's recurrence, token by token, including gates above 1.
#include <gtest/gtest.h>

#include <numbers>

#include "cyfa/mixers/call.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

constexpr int64_t kHeads = 2, kWidth = 6, kHidden = 12, kStored = 8, m = kStored - 1;

struct Parts {
  ParameterTable table;
  std::unique_ptr<Mixer> mixer;
  Weights w;

  explicit Parts(int64_t rho) {
    const Json json = {{"num_heads", kHeads}, {"head_dim", kWidth}, {"num_slots", kStored}, {"rho", rho}, {"use_short_conv", false}};
    ConfigReader reader(json);
    BackboneShape backbone;
    backbone.hidden_size = kHidden;
    mixer = mixer_kind("blurry_window_attention").read(reader, backbone)(ParameterScope(table, ""));
    at::manual_seed(4);
    std::vector<at::Tensor> tensors;
    for (const ParameterSpec& spec : table.specs()) tensors.push_back(at::randn(spec.shape, at::kDouble) * 0.7);
    w = Weights(std::move(tensors));
  }
  at::Tensor mixed(const at::Tensor& x) const {
    Call call(w, x, std::nullopt, nullptr, mixer->state().size());
    return mixer->mix(call);
  }
  at::Tensor operator[](const std::string& name) const {
    for (size_t id = 0; id < table.specs().size(); ++id) {
      if (table.specs()[id].name == name) return w[id];
    }
    throw std::out_of_range(name);
  }
};

at::Tensor heads(const at::Tensor& x, const at::Tensor& norm) {
  const at::Tensor y = x.view({-1, kHeads, kWidth});
  return norm.defined() ? y * at::rsqrt(y.square().mean(-1, true) + 1e-6) * norm : y;
}

double profile(int64_t u, int64_t rho) {
  double sum = 1;
  for (int64_t h = 1; h <= (m - 1) / 2; ++h)
    sum += 2 * std::cos(2 * std::numbers::pi * static_cast<double>(h * u) / static_cast<double>(rho * m));
  return sum / static_cast<double>(m);
}

at::Tensor token_by_token(const Parts& p, const at::Tensor& x, int64_t rho) {
  const at::Tensor q = heads(at::linear(x, p["q_proj.weight"]), p["q_norm.weight"]),
                   k = heads(at::linear(x, p["k_proj.weight"]), p["k_norm.weight"]), v = heads(at::linear(x, p["v_proj.weight"]), {});
  at::Tensor K = at::zeros({kHeads, m, kWidth}, at::kDouble), V = K.clone();
  std::vector<at::Tensor> o;
  for (int64_t t = 0; t < x.size(0); ++t) {
    std::vector<double> phi;
    for (int64_t r = 0; r < m; ++r) phi.push_back(profile(t - rho * r, rho));
    const at::Tensor write = at::tensor(phi, at::kDouble).view({m, 1});
    K = (1 - write) * K + write * k[t].unsqueeze(1);
    V = (1 - write) * V + write * v[t].unsqueeze(1);
    const at::Tensor weight = at::softmax(at::matmul(K, q[t].unsqueeze(-1)).squeeze(-1) / std::sqrt(static_cast<double>(kWidth)), -1);
    o.push_back(at::matmul(weight.unsqueeze(1), V).squeeze(1));
  }
  const at::Tensor gate =
      at::linear(at::linear(x, p["g_proj.0.weight"]), p["g_proj.1.weight"], p["g_proj.1.bias"]).view({-1, kHeads, kWidth});
  return at::linear((heads(at::stack(o).flatten(1), p["o_norm.weight"]) * at::sigmoid(gate)).flatten(1), p["o_proj.weight"]);
}

TEST(BlurryWindow, IsTheRecurrenceOfThePaper) {
  for (const int64_t rho : {1, 2, 3, 5}) {
    const Parts p(rho);
    at::manual_seed(9);
    const at::Tensor x = at::randn({1, 3 * rho * m + 5, kHidden}, at::kDouble);  // a little more than three cycles
    const at::Tensor want = token_by_token(p, x[0], rho);
    const at::Tensor got = p.mixed(x)[0];
    EXPECT_LT((got - want).norm().item<double>() / want.norm().item<double>(), 1e-5) << rho;
  }
}

// With rho = 1 each slot holds one token, so the output depends only on the last m tokens.
TEST(BlurryWindow, OfOneTokenASlotIsASlidingWindow) {
  const Parts p(1);
  at::manual_seed(9);
  const at::Tensor x = at::randn({1, 40, kHidden}, at::kDouble);
  const at::Tensor other = x.clone();
  other.narrow(1, 0, 40 - m).normal_();
  const auto last = [&](const at::Tensor& y) { return p.mixed(y)[0][39]; };
  EXPECT_TRUE(at::allclose(last(x), last(other), 1e-12, 1e-12));
}

}  // namespace
}  // namespace cyfa::test
