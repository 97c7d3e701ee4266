// Tests the sampler on a GPU: it draws what the CPU's draws from the same logits, and a generator with it gives the texts of the host's.
#include <gtest/gtest.h>

#include <cmath>

#include "cyfa/decode/batch_sampler.h"
#include "cyfa/decode/generator.h"
#include "tests/gpu/on_gpu.h"

namespace cyfa::test {
namespace {

class GpuSampler : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    at::manual_seed(1);
  }

  static void expect_same_draws(const SamplingOptions& options, const std::vector<at::Tensor>& logits) {
    const int64_t rows = logits[0].size(0), vocab = logits[0].size(1);
    const auto host = make_sampler(options, rows, vocab, at::kCPU), device = make_sampler(options, rows, vocab, at::Device(at::kCUDA, 0));
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<int64_t> history(static_cast<size_t>(r + 1), r % vocab);
      host->begin(r, history);
      device->begin(r, history);
    }
    for (size_t t = 0; t < logits.size(); ++t) {
      host->draw(logits[t]);
      device->draw(logits[t].to(at::kCUDA));
      EXPECT_EQ(device->read(), host->read()) << "draw " << t;
      EXPECT_TRUE(at::equal(device->ids().to(at::kCPU), host->ids()));
    }
    host->draw(logits[0].narrow(0, rows - 1, 1), rows - 1);  // one row of the batch
    device->draw(logits[0].narrow(0, rows - 1, 1).to(at::kCUDA), rows - 1);
    EXPECT_EQ(device->read(), host->read());
  }
};

TEST_F(GpuSampler, DrawsWhatTheCpuDraws) {
  const std::vector<SamplingOptions> cases = {{},
                                              {.temperature = 1},
                                              {.temperature = 0.7, .seed = 9},
                                              {.temperature = 1, .top_k = 1},
                                              {.temperature = 1, .top_k = 40},
                                              {.temperature = 1.3, .top_p = 0.9},
                                              {.temperature = 1, .top_p = 1e-6},
                                              {.temperature = 1, .top_p = 0.999999},
                                              {.temperature = 1, .min_p = 0.05},
                                              {.temperature = 0.8, .top_k = 50, .top_p = 0.95, .min_p = 0.02, .repetition_penalty = 1.2},
                                              {.repetition_penalty = 1.5},
                                              {.temperature = 1e-300},
                                              {.temperature = 1e300, .top_k = 17},
                                              {.temperature = 1e300, .top_p = 0.3}};
  for (const int64_t vocab : {1, 3, 258, 1000, 32000, 50257, 130000}) {
    for (const double scale : {0.3, 4.0}) {
      std::vector<at::Tensor> logits;
      for (int t = 0; t < 6; ++t) logits.push_back(at::randn({5, vocab}) * scale);
      logits.push_back((at::randn({5, vocab}) * scale).round());  // many ties
      logits.push_back(at::zeros({5, vocab}));
      at::Tensor odd = at::randn({5, vocab}) * scale;
      odd[0].fill_(NAN);
      odd[1][0] = INFINITY;
      odd[2][vocab / 2] = NAN;
      odd[3].fill_(-INFINITY);
      if (vocab > 2) odd[4].narrow(0, 1, vocab - 2).fill_(-INFINITY);
      logits.push_back(odd);
      for (size_t i = 0; i < cases.size(); ++i) {
        SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(vocab) + " tokens, scale " + std::to_string(scale));
        expect_same_draws(cases[i], logits);
      }
    }
  }
}

// Texts do not depend on the batch as long as the step does not: 1 to 16 sequences take the same kernels. Snapshots, which switch the steps
// ahead off, and rows that take the next prompt change nothing.
TEST_F(GpuSampler, TextsAreThoseOfEveryBatch) {
  CausalLM model(ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/configs/cyfa-bytes-2m.json"));
  model.initialise(3, at::kBFloat16, at::Device(at::kCUDA, 0));
  const ByteTokenizer tokenizer;
  const auto engine = prepare_steps(model);
  Generator generator(*engine, tokenizer);
  std::vector<Prompt> prompts;
  for (int i = 0; i < 11; ++i)
    prompts.push_back({tokenizer.encode("prompt " + std::string(static_cast<size_t>(i * 7), 'x')), std::nullopt});
  for (const double temperature : {0.0, 0.9}) {
    GenerateOptions o;
    o.max_tokens = 40;
    o.sampling = {.temperature = temperature, .top_p = 0.95, .repetition_penalty = 1.1, .seed = 2};
    o.stop = {"e", "\x90", "A"};
    std::vector<Completion> alone;
    for (const Prompt& prompt : prompts) alone.push_back(generator.run({prompt}, o).front());
    for (const int64_t batch : {1, 4, 11}) {
      for (const bool keep : {false, true}) {
        o.batch = batch;
        const std::vector<Completion> together = generator.run(prompts, o, keep);
        for (size_t i = 0; i < prompts.size(); ++i) {
          EXPECT_EQ(together[i].ids, alone[i].ids) << "prompt " << i << ", batch " << batch << ", " << keep;
          EXPECT_EQ(together[i].reason, alone[i].reason);
        }
      }
    }
    // A snapshot continues the text.
    o.stop.clear();
    o.ignore_eos = true;
    const Completion whole = generator.run({prompts[3]}, o).front();
    o.max_tokens = 15;
    Prompt rest;
    rest.snapshot = generator.run({prompts[3]}, o, true).front().snapshot;
    o.max_tokens = 25;
    std::vector<int64_t> ids(whole.ids.begin(), whole.ids.begin() + 15);
    const Completion second = generator.run({rest}, o).front();
    ids.insert(ids.end(), second.ids.begin(), second.ids.end());
    EXPECT_EQ(ids, whole.ids);
  }
}

}  // namespace
}  // namespace cyfa::test
