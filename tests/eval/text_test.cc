// Tests Python's string operations, the encoding of pairs, and rolling windows.
#include "cyfa/eval/text.h"

#include <gtest/gtest.h>

#include "cyfa/eval/encoder.h"
#include "cyfa/eval/rolling.h"
#include "tests/model/small_model.h"

namespace cyfa::test {
namespace {

using namespace eval;

TEST(Text, StripsUnicodeWhiteSpace) {
  EXPECT_EQ(strip(" \t\n a b \xC2\xA0\xE3\x80\x80\x1F"), "a b");  // no-break space, ideographic space, unit separator
  EXPECT_EQ(right_strip("  a \n"), "  a");
  EXPECT_EQ(strip(""), "");
  EXPECT_EQ(strip(" \n "), "");
  EXPECT_EQ(strip("a\xE2\x80\x8B"), "a\xE2\x80\x8B");  // zero-width space is none
  EXPECT_EQ(strip("\xFF \xA0"), "\xFF \xA0");          // bytes that are no characters stay
  EXPECT_EQ(strip("..a.b...", "."), "a.b");
  EXPECT_EQ(strip("...", "."), "");
}

TEST(Text, CountsAndChangesCharacters) {
  EXPECT_EQ(characters("h\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), 4u);
  EXPECT_EQ(characters("a\xC3"), 2u);
  EXPECT_EQ(lower("\xC3\x89T\xC3\x89 \xCE\xA3\xD0\x96 \xC3\x97\xC5\xB8"), "\xC3\xA9t\xC3\xA9 \xCF\x83\xD0\xB6 \xC3\x97\xC3\xBF");
  EXPECT_EQ(capitalized("\xC3\xA9T\xC3\x89"), "\xC3\x89t\xC3\xA9");
  EXPECT_EQ(capitalized(""), "");
  EXPECT_EQ(replaced("aaaa", "aa", "b"), "bb");
  EXPECT_EQ(pieces_at_white_space(" a  b\n"), 4u);
  EXPECT_EQ(pieces_at_white_space(""), 1u);
}

TEST(Text, SearchesIgnoringCase) {
  EXPECT_EQ(find_ignoring_case("The Answer", "answer"), 4u);
  EXPECT_EQ(find_ignoring_case("\xC5\xB8 \xC3\x89t", "\xC3\xA9T"), 3u);  // the byte in the text itself
  EXPECT_EQ(find_ignoring_case("abc", "d"), std::string::npos);
  EXPECT_EQ(find_ignoring_case("", ""), 0u);
  EXPECT_TRUE(ends_ignoring_case("the KEY:", "Key:"));
  EXPECT_TRUE(contains_any("it is Paris.", {"rome", "PARIS"}));
  EXPECT_TRUE(contains_any("", {""}));
  EXPECT_FALSE(contains_any("Par is", {"paris"}));
}

ModelConfig byte_config(const Json& more = Json::object()) {
  Json config = small_config();
  config.update(Json{{"vocab_size", 258}, {"bos_token_id", 256}, {"eos_token_id", 257}});
  config.update(more);
  return ModelConfig::parse(config);
}

using Ids = std::vector<int64_t>;

TEST(Encoding, MovesWhiteSpaceToTheContinuation) {
  const ByteTokenizer bytes;
  const Encoder encoder(bytes, byte_config(), false);
  const TokenPair pair = encoder.pair("a \n", "b");
  EXPECT_EQ(pair.context, Ids({'a'}));
  EXPECT_EQ(pair.continuation, Ids({' ', '\n', 'b'}));
}

TEST(Encoding, PutsBosInFrontOfTheContextAlone) {
  const ByteTokenizer bytes;
  const Encoder encoder(bytes, byte_config(), true);
  const TokenPair pair = encoder.pair("ab", " c");
  EXPECT_EQ(pair.context, Ids({256, 'a', 'b'}));
  EXPECT_EQ(pair.continuation, Ids({' ', 'c'}));
  EXPECT_EQ(encoder.encode(""), Ids({256}));
}

TEST(Encoding, AnEmptyContextIsThePrefixToken) {
  const ByteTokenizer bytes;
  for (const bool bos : {false, true}) {
    const Encoder encoder(bytes, byte_config(), bos);
    for (const char* context : {"", " "}) {
      const TokenPair pair = encoder.pair(context, "x");
      EXPECT_EQ(pair.context, Ids({256}));
      EXPECT_EQ(pair.continuation, *context == ' ' ? Ids({' ', 'x'}) : Ids({'x'}));
    }
  }
  EXPECT_EQ(Encoder(bytes, byte_config({{"bos_token_id", 7}}), false).prefix(), 7);
  EXPECT_EQ(Encoder(bytes, byte_config({{"bos_token_id", nullptr}}), false).prefix(), 256);  // the tokenizer's
}

TEST(Encoding, RefusesAContinuationWithoutTokens) {
  const ByteTokenizer bytes;
  const Encoder encoder(bytes, byte_config(), true);
  EXPECT_THROW(encoder.pair("a", ""), std::invalid_argument);
  EXPECT_THROW(encoder.pair("", ""), std::invalid_argument);
}

// The shipped model's SentencePiece tokenizer: both are encoded as one text, and the cut is at the context's own number of tokens.
TEST(Encoding, CutsTheWholeAtTheTokensOfTheContext) {
  const auto tokenizer = load_tokenizer(std::string(CYFA_SOURCE_DIR) + "/models/cyfa-4m/tokenizer.model");
  const ModelConfig config = ModelConfig::read(std::string(CYFA_SOURCE_DIR) + "/models/cyfa-4m/config.json");
  const Encoder encoder(*tokenizer, config, true);
  const std::string context = "Alice was beginning to get very", continuation = " tired of sitting";
  const TokenPair pair = encoder.pair(context, continuation);
  Ids whole = pair.context;
  whole.insert(whole.end(), pair.continuation.begin(), pair.continuation.end());
  EXPECT_EQ(whole, encoder.encode(context + continuation));
  EXPECT_EQ(pair.context, encoder.encode(context));
  EXPECT_EQ(encoder.pair(context + " ", "tired of sitting").continuation, pair.continuation);
}

// Every token once; later full windows with one token of context, the last with as many as fit.
TEST(Rolling, Windows) {
  const auto flat = [](const std::vector<TokenPair>& windows) {
    std::vector<std::pair<Ids, Ids>> all;
    for (const TokenPair& w : windows) all.emplace_back(w.context, w.continuation);
    return all;
  };
  using Windows = std::vector<std::pair<Ids, Ids>>;
  const Ids ids = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(flat(rolling_windows(ids, 99, 3)), (Windows{{{99}, {1, 2, 3}}, {{3}, {4, 5, 6}}, {{5, 6}, {7, 8}}}));
  EXPECT_EQ(flat(rolling_windows(ids, 99, 8)), (Windows{{{99}, ids}}));
  EXPECT_EQ(flat(rolling_windows(ids, 99, 100)), (Windows{{{99}, ids}}));
  EXPECT_EQ(flat(rolling_windows({1, 2, 3}, 99, 1)), (Windows{{{99}, {1}}, {{1}, {2}}, {{2}, {3}}}));
  EXPECT_TRUE(rolling_windows({}, 99, 4).empty());
}

}  // namespace
}  // namespace cyfa::test
