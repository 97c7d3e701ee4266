// Tests that hold for every model, mixer and ablation: forward, forward in pieces, packed sequences and decode steps agree.
#include <gtest/gtest.h>

#include <cstring>

#include "cyfa/model/checkpoint.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

class ModelContract : public testing::TestWithParam<ModelCase> {
 protected:
  static CausalLM model() { return small_model(GetParam().config); }
};

double rel(const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>() / b.norm().item<double>(); }

// Logits of the same model in double.
at::Tensor exact_logits(const CausalLM& m, const at::Tensor& ids) {
  CausalLM wide(m.config());
  for (size_t id = 0; id < m.parameters().size(); ++id) wide.parameters()[id] = m.parameters()[id].to(at::kDouble);
  const Weights w = wide.weights();
  return wide.head(w, wide.forward(w, ids).hidden);
}

// Returns all gradients, zeros for parameters without one, and resets them in the model.
std::vector<at::Tensor> take_gradients(CausalLM& m) {
  std::vector<at::Tensor> all;
  for (at::Tensor& p : m.parameters()) {
    all.push_back(p.grad().defined() ? p.grad().clone() : at::zeros_like(p));
    p.mutable_grad().reset();
  }
  return all;
}

void expect_same_state(const ModelState& a, const ModelState& b) {
  for (size_t layer = 0; layer < a.layers.size(); ++layer) {
    for (size_t i = 0; i < a.layers[layer].size(); ++i) {
      if (b.layers[layer][i].numel() == 0) continue;
      EXPECT_LT(rel(a.layers[layer][i].to(at::kDouble), b.layers[layer][i].to(at::kDouble)), 2e-5) << layer << " " << i;
    }
  }
}

TEST_P(ModelContract, StepsAreForward) {
  const at::NoGradGuard no_grad;
  const CausalLM m = model();
  const Weights w = m.weights();
  const at::Tensor ids = random_ids(m, {3, 37});
  const LmOutput all = m.forward(w, ids);
  const at::Tensor logits = m.head(w, all.hidden);
  ModelState state = m.initial_state(3);
  const at::Tensor exact = exact_logits(m, ids);
  EXPECT_LT(rel(logits, exact), 5e-5);
  for (int64_t t = 0; t < ids.size(1); ++t) EXPECT_LT(rel(m.step(w, ids.select(1, t), state), exact.select(1, t)), 5e-5) << t;
  expect_same_state(state, all.final_state);
}

TEST_P(ModelContract, ASequenceMayBeCutAnywhere) {
  const at::NoGradGuard no_grad;
  const CausalLM m = model();
  const Weights w = m.weights();
  const at::Tensor ids = random_ids(m, {2, 70});
  const LmOutput all = m.forward(w, ids);
  for (const int64_t cut : {0, 1, 2, 3, 63, 64, 65, 69, 70}) {
    const LmOutput first = m.forward(w, ids.narrow(1, 0, cut));
    const ModelState before = first.final_state.clone();
    const LmOutput second = m.forward(w, ids.narrow(1, cut, 70 - cut), std::nullopt, &first.final_state);
    EXPECT_LT(rel(at::cat({first.hidden, second.hidden}, 1), all.hidden), 2e-5) << cut;
    expect_same_state(second.final_state, all.final_state);
    for (size_t layer = 0; layer < before.layers.size(); ++layer) {
      for (size_t i = 0; i < before.layers[layer].size(); ++i)
        EXPECT_TRUE(at::equal(before.layers[layer][i], first.final_state.layers[layer][i]));
    }
  }
}

TEST_P(ModelContract, PackedIsSeparate) {
  const at::NoGradGuard no_grad;
  const CausalLM m = model();
  const Weights w = m.weights();
  const std::vector<int64_t> lengths = {5, 1, 0, 66, 2};
  std::vector<int64_t> borders = {0};
  for (const int64_t n : lengths) borders.push_back(borders.back() + n);
  const at::Tensor ids = random_ids(m, {1, borders.back()});
  const LmOutput packed = m.forward(w, ids, at::tensor(borders, at::kLong));
  std::vector<ModelState> states;
  for (size_t n = 0; n < lengths.size(); ++n) {
    const LmOutput alone = m.forward(w, ids.narrow(1, borders[n], lengths[n]));
    states.push_back(alone.final_state);
    if (lengths[n] == 0) continue;
    EXPECT_LT(rel(packed.hidden.narrow(1, borders[n], lengths[n]), alone.hidden), 5e-5);
  }
  expect_same_state(packed.final_state, ModelState::concatenate(states));
}

TEST_P(ModelContract, TheFutureDoesNotChangeThePast) {
  const at::NoGradGuard no_grad;
  const CausalLM m = model();
  const Weights w = m.weights();
  const at::Tensor ids = random_ids(m, {1, 80}), other = ids.clone();
  other[0][40] = (ids[0][40].item<int64_t>() + 7) % m.config().vocab_size;
  const at::Tensor a = m.forward(w, ids).hidden, b = m.forward(w, other).hidden;
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 40), b.narrow(1, 0, 40)));
  EXPECT_FALSE(at::equal(a.narrow(1, 40, 1), b.narrow(1, 40, 1)));
}

TEST_P(ModelContract, EqualRunsGiveEqualBitsAndAStepsRowsAreTheirOwn) {
  const at::NoGradGuard no_grad;
  const CausalLM m = model();
  const Weights w = m.weights();
  const at::Tensor ids = random_ids(m, {5, 9});
  EXPECT_TRUE(at::equal(m.forward(w, ids).hidden, m.forward(w, ids).hidden));
  ModelState together = m.initial_state(5);
  std::vector<ModelState> alone;
  for (int i = 0; i < 5; ++i) alone.push_back(m.initial_state(1));
  for (int64_t t = 0; t < ids.size(1); ++t) {
    const at::Tensor all = m.step(w, ids.select(1, t), together);
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_TRUE(at::equal(m.step(w, ids.select(1, t).narrow(0, i, 1), alone[static_cast<size_t>(i)]), all.narrow(0, i, 1)))
          << "token " << t;
    }
  }
}

TEST_P(ModelContract, EveryParameterTakesPart) {
  CausalLM m = model();
  for (at::Tensor& p : m.parameters()) p.requires_grad_();
  m.next_token_loss(m.weights(), random_ids(m, {2, 30})).backward();
  for (size_t id = 0; id < m.parameters().size(); ++id) {
    ASSERT_TRUE(m.parameters()[id].grad().defined()) << m.table().specs()[id].name;
    EXPECT_GT(m.parameters()[id].grad().abs().sum().item<double>(), 0) << m.table().specs()[id].name;
  }
}

TEST_P(ModelContract, BatchesAreJoinedAndSplit) {
  const at::NoGradGuard no_grad;
  const CausalLM m = model();
  const Weights w = m.weights();
  std::vector<ModelState> alone;
  for (const int64_t tokens : {9, 70, 2})
    alone.push_back(m.forward(w, random_ids(m, {1, tokens}, static_cast<uint64_t>(tokens))).final_state);
  ModelState together = ModelState::concatenate(alone);
  EXPECT_EQ(together.sequences(), 3);
  const at::Tensor next = random_ids(m, {3, 4});
  // Continue with a forward over the batch, whose sequences have histories of different lengths.
  const at::Tensor read_on = m.forward(w, next, std::nullopt, &together).hidden;
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_LT(rel(read_on.narrow(0, i, 1), m.forward(w, next.narrow(0, i, 1), std::nullopt, &alone[static_cast<size_t>(i)]).hidden), 2e-5);
  }
  ModelState turned = together.select({2, 0});
  for (int64_t t = 0; t < 4; ++t) {
    const at::Tensor all = m.step(w, next.select(1, t), together),
                     two = m.step(w, next.select(1, t).index_select(0, at::tensor({2, 0})), turned);
    for (int64_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(m.step(w, next.select(1, t).narrow(0, i, 1), alone[static_cast<size_t>(i)]), all.narrow(0, i, 1)))
          << "token " << t;
    }
    EXPECT_TRUE(at::equal(two[0], all[2]));
    EXPECT_TRUE(at::equal(two[1], all[0]));
  }
}

TEST_P(ModelContract, CheckpointsComeBack) {
  const Folder folder;
  const CausalLM m = model();
  save_checkpoint(m, folder / "a");
  const CausalLM again = load_checkpoint(folder / "a");
  for (size_t id = 0; id < m.parameters().size(); ++id) EXPECT_TRUE(at::equal(again.parameters()[id], m.parameters()[id]));
  EXPECT_EQ(fingerprint(again), fingerprint(m));
}

// Directional derivative: the change of the loss along a direction matches the gradients, for models that stop no gradient.
TEST_P(ModelContract, GradientsAreDirections) {
  Json config = GetParam().config;
  if (config["model_type"] == "cyclic_flow_attention") config["clock_stop_gradient"] = false;
  CausalLM m = small_model(config);
  for (at::Tensor& p : m.parameters()) p = p.to(at::kDouble).requires_grad_();
  const at::Tensor ids = random_ids(m, {2, 21});
  const auto loss = [&] { return m.next_token_loss(m.weights(), ids); };
  loss().backward();
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  at::manual_seed(11);
  double predicted = 0;
  std::vector<at::Tensor> direction;
  for (const at::Tensor& p : m.parameters()) {
    direction.push_back(at::randn(p.sizes(), p.options()));
    predicted += (direction.back() * p.grad()).sum().item<double>();
  }
  const auto moved = [&](double by) {
    for (size_t id = 0; id < direction.size(); ++id) m.parameters()[id].add_(direction[id], by);
    const auto value = loss().item<double>();
    for (size_t id = 0; id < direction.size(); ++id) m.parameters()[id].sub_(direction[id], by);
    return value;
  };
  EXPECT_NEAR((moved(kStep) - moved(-kStep)) / (2 * kStep), predicted, 1e-4 * std::max(1.0, std::abs(predicted)));
}

// A forward in two parts has the same gradients as one forward: they flow through every tensor of the state.
TEST_P(ModelContract, GradientsFlowThroughStates) {
  CausalLM m = model();
  for (at::Tensor& p : m.parameters()) p = p.to(at::kDouble).requires_grad_();
  const at::Tensor ids = random_ids(m, {2, 40}), weight = at::randn({2, 40, m.config().backbone.hidden_size}, at::kDouble);
  const auto gradients = [&](const std::vector<int64_t>& lengths) {
    const Weights w = m.weights();
    std::vector<at::Tensor> hidden;
    ModelState state;
    int64_t begin = 0;
    for (const int64_t n : lengths) {
      LmOutput out = m.forward(w, ids.narrow(1, begin, n), std::nullopt, begin == 0 ? nullptr : &state);
      hidden.push_back(out.hidden);
      state = std::move(out.final_state);
      begin += n;
    }
    (at::cat(hidden, 1) * weight).sum().backward();
    return take_gradients(m);
  };
  const std::vector<at::Tensor> whole = gradients({40}), parts = gradients({17, 1, 22});
  for (size_t id = 0; id < whole.size(); ++id) {
    EXPECT_LT((parts[id] - whole[id]).norm().item<double>(), 1e-5 * whole[id].norm().item<double>() + 1e-12) << m.table().specs()[id].name;
  }
}

// A final state shares no storage: updating it in place changes neither the initial state nor tensors saved for backward.
TEST_P(ModelContract, FinalStatesOwnTheirMemory) {
  CausalLM m = model();
  for (at::Tensor& p : m.parameters()) p.requires_grad_();
  const Weights w = m.weights();
  const auto gradients = [&](bool spoil) {
    ModelState start = m.forward(w, random_ids(m, {2, 5})).final_state;
    for (MixerState& layer : start.layers) {
      for (at::Tensor& x : layer) x = x.detach();
    }
    const ModelState before = start.clone();
    at::Tensor sum = at::zeros({});
    for (const int64_t tokens : {0, 1, 6}) {
      LmOutput out = m.forward(w, random_ids(m, {2, tokens}), std::nullopt, &start);
      sum = sum + out.hidden.square().sum();
      for (size_t i = 0; i < out.final_state.layers.size(); ++i) {
        for (size_t j = 0; j < out.final_state.layers[i].size(); ++j) {
          const at::Tensor x = out.final_state.layers[i][j];
          EXPECT_TRUE(x.is_contiguous());
          EXPECT_EQ(x.storage().nbytes(), x.nbytes()) << "layer " << i << ", state " << j << " holds more memory than it needs";
          if (spoil && x.numel() > 0) std::memset(x.data_ptr(), 0x7f, x.nbytes());  // bypasses autograd's version counter
          EXPECT_TRUE(at::equal(start.layers[i][j], before.layers[i][j]));
        }
      }
    }
    sum.backward();
    return take_gradients(m);
  };
  const std::vector<at::Tensor> wanted = gradients(false), got = gradients(true);
  for (size_t id = 0; id < wanted.size(); ++id) {
    EXPECT_TRUE(at::equal(wanted[id], got[id])) << m.table().specs()[id].name;
  }
}

// Recomputation in backward works after the caller has destroyed the weights, the state and cu_seqlens.
TEST_P(ModelContract, RecomputationOwnsWhatItNeeds) {
  CausalLM m = model();
  for (at::Tensor& p : m.parameters()) p.requires_grad_();
  const auto gradients = [&](bool recompute) {
    at::Tensor loss;
    {
      const auto w = std::make_unique<Weights>(m.weights());
      const auto state = std::make_unique<ModelState>(m.forward(*w, random_ids(m, {2, 9})).final_state);
      for (MixerState& layer : state->layers) {
        for (at::Tensor& x : layer) x = x.detach();
      }
      const auto borders = std::make_unique<at::Tensor>(at::tensor({0, 11, 30}, at::kLong));
      loss = m.forward(*w, random_ids(m, {1, 30}), *borders, state.get(), recompute).hidden.square().mean();
    }
    loss.backward();
    return take_gradients(m);
  };
  const std::vector<at::Tensor> wanted = gradients(false), got = gradients(true);
  for (size_t id = 0; id < wanted.size(); ++id) {
    EXPECT_LT((got[id] - wanted[id]).norm().item<double>(), 1e-4 * wanted[id].norm().item<double>() + 1e-9);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelContract, testing::ValuesIn(model_cases()), [](const auto& model) { return model.param.name; });

TEST(Model, EveryKindIsTested) {
  for (const MixerKind& kind : mixer_kinds()) {
    const auto cases = model_cases();
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), [&](const ModelCase& c) { return c.config["model_type"] == kind.model_type; }))
        << kind.model_type;
  }
}

TEST(Model, AStateOfAnotherMixerIsRefused) {
  const auto cases = model_cases();
  for (const ModelCase& own : cases) {
    const CausalLM m = small_model(own.config);
    const Weights w = m.weights();
    for (const ModelCase& other : cases) {
      if (other.config["model_type"] == own.config["model_type"]) continue;
      const CausalLM n = small_model(other.config);
      ModelState state = n.forward(n.weights(), random_ids(n, {1, 3})).final_state;
      std::string message = "no error";
      try {
        m.step(w, at::tensor({1}, at::kLong), state);
      } catch (const std::invalid_argument& e) {
        message = e.what();
      }
      // Two kinds may have states of identical shapes; all other states must throw with the tensor's name.
      const ModelState wanted = m.initial_state(1), came = n.initial_state(1);
      const auto shapes = [](const ModelState& s) {
        std::vector<std::vector<int64_t>> all;
        for (const at::Tensor& x : s.layers[0]) all.push_back(x.sizes().vec());
        return all;
      };
      if (wanted.layers.size() != came.layers.size()) {
        EXPECT_NE(message.find("layers, wanted"), std::string::npos) << own.name << " " << other.name << " " << message;
        continue;
      }
      if (shapes(wanted) == shapes(came)) continue;
      EXPECT_NE(message.find("another model than " + m.config().kind->model_type), std::string::npos)
          << own.name << " " << other.name << " " << message;
    }
  }
}

// Gradients flow through the clock to the mixer's input only if the config says so.
TEST(Model, StopGradientOfTheClock) {
  const auto gradient = [](bool stop) {
    Json config = small_config(1);
    config["clock_stop_gradient"] = stop;
    CausalLM m = small_model(config);
    for (at::Tensor& p : m.parameters()) p.requires_grad_();
    m.next_token_loss(m.weights(), random_ids(m, {2, 30})).backward();
    return m.parameters()[0].grad().clone();
  };
  EXPECT_FALSE(at::allclose(gradient(true), gradient(false), 1e-5, 1e-8));
}

TEST(Model, Bf16WeightsComeNear) {
  const at::NoGradGuard no_grad;
  const CausalLM narrow = small_model(small_config(), 3, at::kBFloat16);
  CausalLM wide(ModelConfig::parse(small_config()));
  for (size_t id = 0; id < wide.parameters().size(); ++id) wide.parameters()[id] = narrow.parameters()[id].to(at::kFloat);
  const at::Tensor ids = random_ids(wide, {2, 20});
  const Weights n = narrow.weights(), w = wide.weights();
  EXPECT_LT(rel(narrow.head(n, narrow.forward(n, ids).hidden), wide.head(w, wide.forward(w, ids).hidden)), 1e-5);  // activations stay fp32
  ModelState a = narrow.initial_state(2), b = wide.initial_state(2);
  EXPECT_LT(rel(narrow.step(n, ids.select(1, 0), a), wide.step(w, ids.select(1, 0), b)), 1e-5);
}

TEST(Model, BadInputIsRefused) {
  const CausalLM m = small_model(small_config());
  const Weights w = m.weights();
  EXPECT_ANY_THROW(m.forward(w, at::tensor({1, 2}, at::kLong)));
  EXPECT_ANY_THROW(m.forward(w, at::tensor({1, 61}, at::kLong).unsqueeze(0)));
  EXPECT_ANY_THROW(m.forward(w, at::tensor({1, -1}, at::kLong).unsqueeze(0)));
  EXPECT_ANY_THROW(m.forward(w, at::ones({1, 2})));
  ModelState other = small_model(small_config(3)).initial_state(1);
  EXPECT_ANY_THROW(m.forward(w, at::tensor({1, 2}, at::kLong).unsqueeze(0), std::nullopt, &other));
  ModelState state = m.initial_state(2);
  EXPECT_ANY_THROW(m.step(w, at::tensor({1, 2, 3}, at::kLong), state));
  EXPECT_ANY_THROW(m.next_token_loss(w, at::tensor({1}, at::kLong).unsqueeze(0)));
}

TEST(Model, StatesAreCopiedByRow) {
  const CausalLM m = small_model(small_config());
  const at::Tensor ids = random_ids(m, {3, 6});
  const ModelState state = m.forward(m.weights(), ids).final_state;
  const std::vector<ModelState> parts = {state.select({2}), state.select({0, 1})};
  const ModelState turned = ModelState::concatenate(parts);
  EXPECT_EQ(turned.sequences(), 3);
  EXPECT_TRUE(at::equal(turned.layers[1][0][0], state.layers[1][0][2]));
  EXPECT_TRUE(at::equal(turned.layers[1][0][2], state.layers[1][0][1]));
  EXPECT_EQ(state.bytes(), 3 * m.state_bytes());
}

}  // namespace
}  // namespace cyfa::test
