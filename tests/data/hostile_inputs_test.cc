// Damaged and crafted inputs of the data layer: compressed text, manifests, SentencePiece models.
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>
#include <zstd.h>

#include <random>

#include "cyfa/data/sentencepiece_file.h"
#include "cyfa/data/tokenizer.h"
#include "cyfa/io/file_error.h"
#include "tests/data/data_folder.h"

namespace cyfa::test {
namespace {

// The text of a folder of byte tokens, without BOS and EOS.
std::string text_of(const std::filesystem::path& folder) {
  std::string text;
  for (const int64_t id : tokens_of(TokenData::open(folder))) {
    if (id < 256) text += static_cast<char>(id);
  }
  return text;
}

// Words that compress by about half, so that a frame has many blocks of 128 KiB.
std::string random_words(size_t bytes) {
  std::mt19937 random(3);
  std::string text;
  while (text.size() < bytes) text += std::to_string(random()) + (random() % 9 == 0 ? "\n" : " ");
  text.resize(bytes);
  return text;
}

std::string compressed(const std::string& text, bool checksum) {
  const std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, checksum ? 1 : 0);
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress2(context.get(), out.data(), out.size(), text.data(), text.size()));
  return out;
}

// A frame that fits one buffer is decompressed as one by default, and its text dropped if its end is damaged.
TEST(HostileZstd, AllBlocksBeforeTheDamageAreKept) {
  for (const size_t bytes : {size_t{200} << 10, size_t{3132} << 10}) {
    const Folder folder;
    const std::string text = random_words(bytes), good = compressed(text, true);
    constexpr size_t kBlock = 128 << 10;
    const size_t before_last = (text.size() - 1) / kBlock * kBlock;
    // The size of the text that is kept. Of a last block whose content is wrong, only a checksum after it tells.
    const auto kept = [&](const std::string& name, const std::string& frame) {
      write_file(folder / name / "a.txt.zst", frame);
      const PrepareResult result = prepare(folder / (name + "-out"), folder / name);
      EXPECT_EQ(result.manifest.losses.damaged, name == "good" ? 0 : 1);
      EXPECT_EQ(result.manifest.documents(), 1);
      const std::string found = text_of(folder / (name + "-out"));
      const size_t sound = name == "changed" ? std::min(found.size(), before_last) : found.size();
      EXPECT_TRUE(found.substr(0, sound) == text.substr(0, sound)) << name;
      return found.size();
    };
    EXPECT_EQ(kept("good", good), text.size());
    EXPECT_EQ(kept("cut", good.substr(0, good.size() - 10)), before_last);
    EXPECT_EQ(kept("checksum", good.substr(0, good.size() - 1) + static_cast<char>(good.back() ^ 1)), text.size());
    std::string changed = good;
    changed[good.size() - 40] = static_cast<char>(changed[good.size() - 40] ^ 0x55);
    EXPECT_GE(kept("changed", changed), before_last);
  }
}

TEST(HostileZstd, MutatedFramesNeverCrash) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += Json{{"text", "number " + std::to_string(i * 7919 % 20011)}}.dump() + "\n";
  const std::string good = compressed(lines, false);
  std::mt19937 random(4);
  for (int i = 0; i < 120; ++i) {
    std::string bad = good.substr(0, i % 3 == 0 ? random() % good.size() : good.size());
    for (unsigned n = random() % 4; n > 0 && !bad.empty(); --n) bad[random() % bad.size()] = static_cast<char>(random());
    write_file(folder / "in/a.jsonl.zst", bad);
    write_file(folder / "in/b.txt", "after");
    std::filesystem::remove_all(folder / "out");
    prepare(folder / "out", folder / "in");
    EXPECT_TRUE(text_of(folder / "out").ends_with("after"));
  }
}

class Lines final : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return count_ == 300; }
  void Next() override { line_ = "the quick brown fox jumps over the lazy dog number " + std::to_string(++count_ * 37 % 101); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  int count_ = 0;
  std::string line_ = "the quick brown fox jumps over the lazy dog";
};

std::string trained(const std::string& options) {
  Lines lines;
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--vocab_size=330 --byte_fallback=true --minloglevel=2 --hard_vocab_limit=false " + options, &lines, &model);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return model;
}

// The library follows the tables of a model without looking. Mutated ones are refused before, or harmless.
TEST(HostileSentencePiece, MutatedModelsNeverCrash) {
  const Folder folder;
  const std::filesystem::path path = folder / "tokenizer.model";
  std::mt19937 random(6);
  for (const char* options :
       {"--model_type=bpe --normalization_rule_name=identity", "--model_type=unigram --normalization_rule_name=nmt_nfkc"}) {
    const std::string good = trained(options);
    EXPECT_NO_THROW(sentencepiece_traits(good, path));
    int loaded = 0;
    for (int i = 0; i < 300; ++i) {
      std::string bad = good;
      if (i % 5 == 0) bad.resize(random() % good.size());
      for (unsigned n = random() % 4 + (i % 5 == 0 ? 0 : 1); n > 0 && !bad.empty(); --n) {
        bad[random() % bad.size()] = static_cast<char>(random() % 3 == 0 ? 0xFF : random());
      }
      write_file(path, bad);
      try {
        const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(path.string());
        ++loaded;
        const std::vector<int64_t> ids = tokenizer->encode("the quick “brown” ﬁsh, ½ Ａ number 12 \xFF of 𝒳 dogs");
        tokenizer->decode(ids);
        WordCache cache;
        std::vector<uint32_t> appended;
        tokenizer->append("the quick “brown” ﬁsh, ½ Ａ number 12", false, cache, appended);
      } catch (const io::FileError& e) {
        EXPECT_EQ(std::string(e.what()).find(".cc"), std::string::npos) << e.what();
      }
    }
    EXPECT_GT(loaded, 10);  // the others are refused
  }
}

TEST(HostileSentencePiece, RulesThatPointOutsideThemselvesAreRefused) {
  const std::string good = trained("--model_type=unigram --normalization_rule_name=nmt_nfkc");
  // The table of rules begins with its length; an early unit of the table is made to lead far away.
  const size_t name = good.find("nmt_nfkc");
  ASSERT_NE(name, std::string::npos);
  std::string bad = good;
  bad.replace(name + 60, 4, "\xFF\xFF\xFF\x7E", 4);
  try {
    sentencepiece_traits(bad, "tokenizer.model");
    FAIL() << "accepted";
  } catch (const io::FileError& e) {
    EXPECT_NE(std::string(e.what()).find("inconsistent"), std::string::npos) << e.what();
  }
}

TEST(HostileManifests, ProgressIsCheckedKeyByKey) {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += Json{{"text", "document " + std::to_string(i)}}.dump() + "\n";
  write_file(folder / "in.jsonl", lines + "damage\n");
  const auto run = [&](bool stop) {
    return prepare(folder / "out", folder / "in.jsonl", [&](PrepareOptions& o) {
      o.shard_tokens = 1000;
      o.stop_at_damage = stop;
    });
  };
  EXPECT_ANY_THROW(run(true));
  const std::string good = read_file(folder / "out/progress.json");
  const auto error = [&](const std::function<void(nlohmann::ordered_json&)>& change) -> std::string {
    auto json = nlohmann::ordered_json::parse(good);
    change(json);
    write_file(folder / "out/progress.json", json.dump());
    try {
      run(true);
    } catch (const io::FileError& e) {
      return e.what();
    }
    return "";
  };
  const auto expect = [](const std::string& text, const std::string& part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  expect(error([](auto& j) { j["next"]["offset"] = 1e300; }), "progress.json: is damaged: next.offset is ");
  expect(error([](auto& j) { j["next"]["line"] = -1; }), "next.line is ");
  expect(error([](auto& j) { j["open"] = 3; }), "open is \"3\"; wanted true or false");
  expect(error([](auto& j) { j["settings"] = 3; }), "settings is not a JSON object");
  expect(error([](auto& j) { j["manifest"]["shards"][0]["tokens"] = -5; }), "shards[0].tokens");
  expect(error([](auto& j) { j.erase("repaired"); }), "the key repaired is missing");
  write_file(folder / "out/progress.json", good);
  EXPECT_EQ(run(false).manifest.losses.damaged, 1);
}

}  // namespace
}  // namespace cyfa::test
