// Tests checkpoints: bitwise round trips, and invalid or inconsistent folders.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "cyfa/io/file_error.h"
#include "cyfa/model/checkpoint.h"
#include "cyfa/model/tensor_file.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

namespace fs = std::filesystem;

std::string error_of(const fs::path& folder) {
  try {
    load_checkpoint(folder);
  } catch (const io::FileError& e) {
    return e.what();
  }
  return "no error";
}

void expect_contains(const std::string& text, const std::string& words) { EXPECT_NE(text.find(words), std::string::npos) << text; }

std::string slurp(const fs::path& path) { return {std::istreambuf_iterator<char>(std::ifstream(path, std::ios::binary).rdbuf()), {}}; }

TEST(Checkpoint, RoundTripIsBitExact) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t shard : {int64_t{1} << 40, int64_t{20000}, int64_t{1}}) {
      const Folder folder;
      const CausalLM model = small_model(small_config(), 3, dtype);
      save_checkpoint(model, folder / "a", shard);
      EXPECT_EQ(fs::exists(folder / "a" / "model.safetensors"), shard > 20000);
      for (const bool writable : {false, true}) {
        const CausalLM again = load_checkpoint(folder / "a", {std::nullopt, at::kCPU, writable});
        EXPECT_EQ(again.config().json, model.config().json);
        for (size_t id = 0; id < model.parameters().size(); ++id) {
          EXPECT_TRUE(at::equal(again.parameters()[id], model.parameters()[id]));
          EXPECT_EQ(again.parameters()[id].scalar_type(), dtype);
        }
        EXPECT_EQ(fingerprint(again), fingerprint(model));
        save_checkpoint(again, folder / (writable ? "b" : "c"), shard);
      }
      for (const auto& entry : fs::directory_iterator(folder / "a")) {
        EXPECT_EQ(slurp(entry.path()), slurp(folder / "b" / entry.path().filename().string()));
      }
    }
  }
}

TEST(Checkpoint, TypesAreConverted) {
  const Folder folder;
  const CausalLM model = small_model(small_config());
  save_checkpoint(model, folder / "a");
  const CausalLM narrow = load_checkpoint(folder / "a", {at::kBFloat16, at::kCPU, false});
  EXPECT_TRUE(at::equal(narrow.parameters()[1], model.parameters()[1].to(at::kBFloat16)));
  EXPECT_NE(fingerprint(narrow), fingerprint(model));
}

TEST(Checkpoint, FingerprintSeesEveryBit) {
  CausalLM model = small_model(small_config());
  const uint64_t before = fingerprint(model);
  for (at::Tensor& p : model.parameters()) {
    auto* bits = static_cast<uint8_t*>(p.mutable_data_ptr());
    bits[p.nbytes() - 1] ^= 1;
    EXPECT_NE(fingerprint(model), before);
    bits[p.nbytes() - 1] ^= 1;
  }
  EXPECT_EQ(fingerprint(model), before);
}

TEST(Checkpoint, IsNeverWrittenOverAnother) {
  const Folder folder;
  const CausalLM model = small_model(small_config());
  save_checkpoint(model, folder / "a/");
  EXPECT_THROW(save_checkpoint(model, folder / "a"), io::FileError);
  fs::create_directory(folder / "empty");
  EXPECT_NO_THROW(save_checkpoint(model, folder / "empty"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / ""), fs::directory_iterator()), 2);  // no temporary files are left
}

TEST(Checkpoint, MissingUnexpectedAndMisshapenTensorsAreNamed) {
  const Folder folder;
  const CausalLM model = small_model(small_config());
  NamedTensors tensors;
  for (size_t id = 0; id < model.parameters().size(); ++id) tensors.emplace_back(model.table().specs()[id].name, model.parameters()[id]);
  const auto rewritten = [&](const std::function<void(NamedTensors&)>& change) {
    NamedTensors changed = tensors;
    change(changed);
    write_tensor_file(folder / "m" / "model.safetensors", changed);
    return error_of(folder / "m");
  };
  fs::create_directory(folder / "m");
  std::ofstream(folder / "m" / "config.json") << small_config().dump();
  EXPECT_EQ(rewritten([](NamedTensors&) {}), "no error");
  expect_contains(rewritten([](NamedTensors& t) { t.erase(t.begin() + 3); }), tensors[3].first);
  expect_contains(rewritten([](NamedTensors& t) { t.emplace_back("model.extra", at::ones({2})); }), "model.extra");
  expect_contains(rewritten([](NamedTensors& t) { t[4].second = t[4].second.unsqueeze(0); }), "wrong shape");
  expect_contains(rewritten([](NamedTensors& t) { t[4].second = t[4].second.to(at::kLong); }), "floating");
  expect_contains(rewritten([](NamedTensors& t) { t.clear(); }), "more");
}

TEST(Checkpoint, TensorsOfAnotherArchitectureAreNamed) {
  std::map<std::string, Json> configs;
  for (const ModelCase& c : model_cases()) configs[c.name] = c.config;
  const std::vector<std::array<const char*, 2>> cases = {
      {"Gsa", "Gla"}, {"Transformer", "Gsa"}, {"Mamba2", "Mamba3"}, {"CyclicFlow", "Kda"}};
  for (const auto& [weights, config] : cases) {
    const Folder folder;
    save_checkpoint(small_model(configs.at(weights)), folder / "m");
    std::ofstream(folder / "m" / "config.json") << configs.at(config).dump();
    const std::string message = error_of(folder / "m");
    expect_contains(message, "lacks");
    expect_contains(message, "does not ask for");
    expect_contains(message, "another architecture than");
  }
}

TEST(Checkpoint, FoldersThatAreNoCheckpoints) {
  const Folder folder;
  expect_contains(error_of(folder / "absent"), "not a folder");
  fs::create_directory(folder / "m");
  expect_contains(error_of(folder / "m"), "config.json");
  std::ofstream(folder / "m" / "config.json") << small_config().dump();
  expect_contains(error_of(folder / "m"), "neither");
  for (const char* index : {"", "[]", "{}", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": 1}}", "{\"weight_map\": {\"a\": \"../x\"}}",
                            "{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "{\"weight_map\": {\"a\": \"..\"}}",
                            "{\"weight_map\": {\"a\": \"gone.safetensors\"}}"}) {
    std::ofstream(folder / "m" / "model.safetensors.index.json") << index;
    EXPECT_NE(error_of(folder / "m"), "no error") << index;
  }
}

TEST(Checkpoint, AnIndexThatLiesIsFound) {
  const Folder folder;
  save_checkpoint(small_model(small_config()), folder / "m", 20000);
  const fs::path index = folder / "m" / "model.safetensors.index.json";
  Json json = Json::parse(slurp(index));
  const auto name = json["weight_map"].begin().key();
  json["weight_map"][name] =
      json["weight_map"].items().begin().value() == "model-00002" ? "model-00001" : (--json["weight_map"].end()).value();
  std::ofstream(index) << json.dump();
  expect_contains(error_of(folder / "m"), "does not hold it");
}

// Truncated files throw. Files with random byte changes load or throw, but never crash.
TEST(Checkpoint, DamagedFilesNeverCrash) {
  const Folder folder;
  save_checkpoint(small_model(small_config(1)), folder / "m");
  const fs::path file = folder / "m" / "model.safetensors";
  const std::string whole = slurp(file);
  const auto write = [&](const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  for (size_t i = 0; i < 40; ++i) {
    write(whole.substr(0, whole.size() * i / 40));
    EXPECT_NE(error_of(folder / "m"), "no error");
  }
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    std::string changed = whole;
    for (int n = 0; n < 1 + i % 4; ++n) changed[random() % 3000] = static_cast<char>(random());
    write(changed);
    error_of(folder / "m");
  }
}

}  // namespace
}  // namespace cyfa::test
