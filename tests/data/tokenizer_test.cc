// Tokenizers, and UTF-8 in parts.
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include <fstream>
#include <random>

#include "cyfa/data/tokenizer.h"
#include "cyfa/data/utf8.h"
#include "cyfa/io/file_error.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

std::string random_bytes(std::mt19937& random, size_t most) {
  std::string text(random() % (most + 1), '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(ByteTokenizer, AnyBytesComeBack) {
  const ByteTokenizer tokenizer;
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_bytes(random, 200);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
  EXPECT_EQ(tokenizer.piece(ByteTokenizer::kBegin), "");
  EXPECT_EQ(tokenizer.piece(-1), "");
  EXPECT_EQ(tokenizer.piece(1 << 20), "");
}

class Lines final : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return count_ == 400; }
  void Next() override { line_ = "the quick brown fox jumps over the lazy dog number " + std::to_string(++count_ * 37 % 101); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  int count_ = 0;
  std::string line_ = "the quick brown fox jumps over the lazy dog";
};

// A small SentencePiece model with byte fallback, trained by the test.
class SentencePiece : public testing::Test {
 protected:
  void SetUp() override { tokenizer_ = train("tokenizer.model", ""); }

  std::unique_ptr<Tokenizer> train(const std::string& name, const std::string& options) const {
    Lines lines;
    std::string model;
    const auto status =
        sentencepiece::SentencePieceTrainer::Train(std::string("--vocab_size=330 --model_type=bpe --byte_fallback=true --minloglevel=2 "
                                                               "--hard_vocab_limit=false --normalization_rule_name=identity") +
                                                       options,
                                                   &lines, &model);
    EXPECT_TRUE(status.ok()) << status.ToString();
    std::ofstream(folder_ / name, std::ios::binary) << model;
    return load_tokenizer((folder_ / name).string());
  }
  Folder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SentencePiece, TextsComeBack) {
  for (const char* text : {"the quick brown fox", "dog number 12", "Grüße aus 東京 🙂", "a", "\xE2\x82\xAC"}) {
    const std::vector<int64_t> ids = tokenizer_->encode(text);
    EXPECT_EQ(tokenizer_->decode(ids), text);
    std::string pieces;
    for (const int64_t id : ids) pieces += tokenizer_->piece(id);
    EXPECT_EQ(pieces, std::string(" ") + text);
  }
  EXPECT_TRUE(tokenizer_->encode("").empty());
  EXPECT_EQ(tokenizer_->piece(1), "");  // <s>
  EXPECT_EQ(tokenizer_->piece(tokenizer_->vocab_size()), "");
}

TEST_F(SentencePiece, InvalidTextIsTaken) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    const std::vector<int64_t> ids = tokenizer_->encode(random_bytes(random, 60));
    const std::string text = tokenizer_->decode(ids);
    EXPECT_EQ(as_utf8(text), text);
  }
}

// Encoding word by word and in parts gives the same tokens as SentencePiece for the whole text. The models: default; like those of LLaMA
// and Mistral; without byte fallback; without a space before the first word; with pieces that span words; with user-defined symbols;
// unigram.
TEST_F(SentencePiece, LongTextsWordByWord) {
  const std::vector<std::string> parts = {"the",
                                          "quick",
                                          " ",
                                          "  ",
                                          "   ",
                                          "\n",
                                          "\t",
                                          "brown fox",
                                          "x",
                                          "é",
                                          "東京",
                                          "🙂",
                                          ".",
                                          "12",
                                          "\u2581",
                                          "\u2581 ",
                                          " \u2581\u2581",
                                          "\xFF",
                                          "\xE2\x82",
                                          "<s>",
                                          "<0x41>",
                                          std::string(1, '\0'),
                                          "number",
                                          "azyx",
                                          "dogs",
                                          "e",
                                          "th",
                                          "fox_jumps",
                                          "jumps over",
                                          "unbelievablylongwordthatnocachewouldtakeandnotablebeholdsitisevenlongerthanthelongestwordofall"};
  const std::string as_is = " --remove_extra_whitespaces=false";
  for (const std::string& options : {std::string(), as_is, as_is + " --byte_fallback=false", as_is + " --add_dummy_prefix=false",
                                     as_is + " --split_by_whitespace=false --vocab_size=500",
                                     as_is + " --user_defined_symbols=fox_jumps,dogs", std::string(" --model_type=unigram")}) {
    const std::unique_ptr<Tokenizer> tokenizer = train("other.model", options);
    std::mt19937 random(6);
    WordCache cache;
    const auto check = [&](const std::string& text) {
      const std::vector<int64_t> wanted = tokenizer->encode(text);
      std::vector<uint32_t> ids;
      tokenizer->append(text, false, cache, ids);
      EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.end()), wanted) << testing::PrintToString(text) << options;
      const size_t cut = text.size() < 3 ? 0 : cut_text(text);
      if (options != as_is || cut == 0 || cut == text.size() || text[cut] != ' ' || text[cut - 1] == ' ') return;
      ids.clear();
      tokenizer->append(std::string_view(text).substr(0, cut), false, cache, ids);
      tokenizer->append(std::string_view(text).substr(cut), true, cache, ids);
      EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.end()), wanted) << testing::PrintToString(text) << " cut at " << cut;
    };
    for (int i = 0; i < 1500; ++i) {
      std::string text;
      for (unsigned count = random() % 30; count > 0; --count) text += parts[random() % parts.size()];
      check(text);
    }
    for (int i = 0; i < 200; ++i) check(random_bytes(random, 60));
    if (options != as_is) continue;
    std::string words;
    while (words.size() < 3 << 20)
      words += "the quick brown fox jumps over " + std::to_string(words.size()) + (words.size() % 5 == 0 ? ".\n" : " ");
    check(words);
  }
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_EQ(tokenizer_->eos(), 2);
}

TEST_F(SentencePiece, OfACheckpoint) {
  Json config = small_config();
  EXPECT_THROW(checkpoint_tokenizer(folder_ / "", ModelConfig::parse(config)), io::FileError);  // the model has 61 tokens
  config["vocab_size"] = 1000;
  EXPECT_EQ(checkpoint_tokenizer(folder_ / "", ModelConfig::parse(config))->hash(), tokenizer_->hash());
  config["tokenizer"] = "bytes";
  EXPECT_EQ(checkpoint_tokenizer(folder_ / "", ModelConfig::parse(config))->name(), "bytes");
  config.erase("tokenizer");
  EXPECT_THROW(checkpoint_tokenizer(folder_ / "nowhere", ModelConfig::parse(config)), io::FileError);
}

TEST(Tokenizers, FilesThatAreNone) {
  const Folder folder;
  EXPECT_THROW(load_tokenizer((folder / "absent").string()), io::FileError);
  std::ofstream(folder / "text") << "this is not a model";
  EXPECT_THROW(load_tokenizer((folder / "text").string()), io::FileError);
  std::ofstream(folder / "empty");
  EXPECT_THROW(load_tokenizer((folder / "empty").string()), io::FileError);
}

TEST(Utf8, WholeCharacters) {
  EXPECT_EQ(whole_characters(""), 0U);
  EXPECT_EQ(whole_characters("abc"), 3U);
  EXPECT_EQ(whole_characters("ab\xE2\x82"), 2U);
  EXPECT_EQ(whole_characters("ab\xE2\x82\xAC"), 5U);
  EXPECT_EQ(whole_characters("\xF0\x9F\x99"), 0U);
  EXPECT_EQ(whole_characters("\xFF"), 1U);      // never part of a character
  EXPECT_EQ(whole_characters("a\x80"), 2U);     // likewise
  EXPECT_EQ(whole_characters("\xED\xA0"), 2U);  // half of a surrogate pair
  EXPECT_EQ(whole_characters("\xC3"), 0U);
}

TEST(Utf8, Valid) {
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = random_bytes(random, 6);
    if (i % 2 == 0) bytes = "0123456789" + bytes + "0123456789";
    EXPECT_EQ(is_utf8(bytes), as_utf8(bytes) == bytes);
  }
  EXPECT_TRUE(is_utf8("Grüße 🙂, 東京"));
}

TEST(Utf8, WhatIsNoTextIsReplaced) {
  EXPECT_EQ(as_utf8("Grüße 🙂"), "Grüße 🙂");
  EXPECT_EQ(as_utf8("a\xFFz"), "a\xEF\xBF\xBDz");
  EXPECT_EQ(as_utf8("\xE2\x82"), "\xEF\xBF\xBD");
  EXPECT_EQ(as_utf8("\xE2\x82z"), "\xEF\xBF\xBDz");
  EXPECT_EQ(as_utf8(std::string("a\0b", 3)), std::string("a\0b", 3));
  // Conversion in parts gives the same result as all at once.
  std::mt19937 random(4);
  for (int i = 0; i < 2000; ++i) {
    const std::string bytes = random_bytes(random, 12);
    std::string pending, out;
    for (const char c : bytes) {
      pending += c;
      const size_t whole = whole_characters(pending);
      out += as_utf8(pending.substr(0, whole));
      pending.erase(0, whole);
    }
    EXPECT_EQ(out + as_utf8(pending), as_utf8(bytes));
    EXPECT_EQ(as_utf8(as_utf8(bytes)), as_utf8(bytes));
  }
}

}  // namespace
}  // namespace cyfa::test
