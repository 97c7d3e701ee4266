// Configs that ask for models of any size, and mutated ones: an error within the limits of the parser, never a crash or an allocation.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <random>

#include "cyfa/io/file_error.h"
#include "cyfa/io/json.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

std::string error_of(const Json& config) {
  try {
    CausalLM model(ModelConfig::parse(config));
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(ConfigLimits, ProductsOfKeys) {
  const auto says = [](const Json& keys, const std::string& words) {
    Json config = small_config();
    config.update(keys);
    const std::string error = error_of(config);
    EXPECT_NE(error.find(words), std::string::npos) << keys << "\n" << error;
  };
  says({{"num_heads", 1 << 20}, {"head_dim", 1 << 20}, {"hidden_size", 1 << 24}}, "the parameter attn.q_proj.weight would be");
  says({{"vocab_size", 1 << 24}, {"hidden_size", 1 << 20}}, "parameters; at most 2^42");
  says({{"intermediate_size", 1 << 24}, {"hidden_size", 1 << 20}}, "parameter");
  says({{"num_heads", 1 << 16}, {"head_dim", 64}, {"num_slots", 8192}, {"readout", "identity"}}, "the state of a sequence would have");
  says({{"num_slots", 16384}}, "num_slots is 16384");
  says({{"attn", Json::array({{{"layers", {0}}, {"num_heads", 1}}, {{"layers", {1}}, {"num_heads", 1}}, {{"layers", Json::array()}}})}},
       "more than the model has layers");
  Json unknown = Json::object();
  for (int i = 0; i < 15; ++i) unknown["key" + std::to_string(i)] = i;
  says(unknown, "\"key9\" and 5 more");
}

// The largest values of every key that a config file has, one and two at a time.
TEST(ConfigLimits, ExtremeNumbersInEveryKey) {
  const std::vector<Json> extremes = {
      0,       -1,      1,       2,       1e300,   -1e300, 0.5,  INT64_MAX,     INT64_MIN,      UINT64_MAX,
      1 << 13, 1 << 20, 1 << 24, 1 << 30, nullptr, "x",    true, Json::array(), Json::object(), Json::array({1, 2}),
      3,       255,     4096};
  for (const ModelCase& c : model_cases()) {
    for (const auto& [key, value] : c.config.items()) {
      for (const Json& extreme : extremes) {
        Json config = c.config;
        config[key] = extreme;
        error_of(config);
      }
    }
  }
}

TEST(ConfigLimits, MutatedFilesNeverCrash) {
  std::mt19937 random(12);
  const auto cases = model_cases();
  const char* words[] = {"0",          "-1",   "9",  "1e9",  "99999999", "4611686018427387904",
                         "null",       "true", "[]", "{}",   "\"",       ",",
                         ":",          "}",    "[",  "\xFF", "\"gla\"",  "\"attn\": {\"layers\": [0], \"num_heads\": 1},",
                         "layer_types"};
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 6000; ++i) {
    std::string text = cases[random() % cases.size()].config.dump();
    for (unsigned n = random() % 3 + 1; n > 0; --n) {
      const std::string word = words[random() % std::size(words)];
      const size_t at = random() % text.size();
      text.replace(at, random() % 2 == 0 ? 0 : random() % 6, word);
    }
    try {
      CausalLM model(ModelConfig::parse(io::parse_json(text, "config.json")));
    } catch (const ConfigError&) {
    } catch (const io::FileError&) {
    }
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_LT(taken.count(), 120) << "6,000 small configs";
}

}  // namespace
}  // namespace cyfa::test
