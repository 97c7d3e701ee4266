// The data inside the page; tests/apps/probe_test.py opens a page in a browser.
#include "cyfa/analysis/page.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cyfa/analysis/reads.h"
#include "tests/model/small_model.h"

namespace cyfa::analysis {
namespace {

TEST(Page, Base64) {
  // The vectors of RFC 4648.
  const auto of = [](const std::string& text) { return base64({text.begin(), text.end()}); };
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of("f"), "Zg==");
  EXPECT_EQ(of("fo"), "Zm8=");
  EXPECT_EQ(of("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64({255, 254}), "//4=");
}

TEST(Page, HoldsTheReadsOfTheModel) {
  Json config = test::small_config();
  config["vocab_size"] = ByteTokenizer::kVocabulary;
  config.erase("bos_token_id");
  config.erase("eos_token_id");
  CausalLM model(ModelConfig::parse(config));
  model.initialise(3);
  const Weights w = model.weights();
  const ByteTokenizer bytes;
  const at::Tensor ids = at::tensor(bytes.encode("</script>ab"), at::kLong);
  const std::string page = clock_page(model, w, ids, bytes, "a < b", 2);
  EXPECT_EQ(page.find("@@DATA@@"), std::string::npos);
  const std::string open = "id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));  // the text's own tag does not end it
  EXPECT_EQ(data["title"], "a < b");
  EXPECT_EQ(data["head"], 2);
  ASSERT_EQ(data["tokens"].size(), 11u);
  EXPECT_EQ(data["tokens"][0], "<");
  ASSERT_EQ(data["heads"].size(), 6u);
  walk_reads(model, w, ids.unsqueeze(0), [&](const ClockLayer& layer, const ops::CyclicFlowReads& reads) {
    for (int64_t h = 0; h < layer.heads; ++h) {
      const Json& head = data["heads"][static_cast<size_t>(layer.first + h)];
      EXPECT_EQ(head["m"], 9);
      EXPECT_EQ(head["energy"].get<std::string>().size(), 132u);  // 11 tokens of 9 slots
      EXPECT_EQ(head["reads"].get<std::string>().size(), 132u);
      double clock = 0;
      for (const Json& delta : head["delta"]) clock += delta.get<double>();
      EXPECT_NEAR(clock, reads.clock[0][10][h].item<double>(), 11 * 0.0006);
      // The first token reads its own write alone; the last one's largest weight is listed first.
      ASSERT_LE(head["writers"][0].size(), 1u);
      const at::Tensor last = reads.writes[0][10][h];
      const auto largest = last.abs().argmax().item<int64_t>();
      EXPECT_EQ(head["writers"][10][0][0], largest);
      EXPECT_NEAR(head["writers"][10][0][1].get<double>(), last[largest].item<double>(), 0.0006);
      const auto visible = last.abs().ge(0.0005).sum().item<int64_t>();  // the page has three decimals
      EXPECT_EQ(head["writers"][10].size(), static_cast<size_t>(std::min<int64_t>(8, visible)));
    }
  });
}

}  // namespace
}  // namespace cyfa::analysis
