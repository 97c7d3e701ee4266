// See encoder.h.
#include "cyfa/eval/encoder.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cyfa/eval/text.h"
#include "cyfa/io/json.h"

namespace cyfa::eval {
namespace {

// Bytes of a text from which it is encoded in parts: as a whole, SentencePiece takes a hundred times its size in memory.
constexpr size_t kLong = 1 << 20;

int64_t prefix_of(const Tokenizer& tokenizer, const ModelConfig& config) {
  if (config.bos) return *config.bos;
  if (tokenizer.bos()) return *tokenizer.bos();
  if (!config.eos.empty()) return config.eos.front();
  if (tokenizer.eos()) return *tokenizer.eos();
  throw std::invalid_argument("neither the model's config nor the tokenizer " + tokenizer.name() +
                              " names a token that begins or ends a text; wanted bos_token_id in config.json");
}

}  // namespace

bool checkpoint_puts_bos(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  const std::filesystem::path file = folder / "tokenizer_config.json";
  if (std::filesystem::exists(file)) {
    const nlohmann::ordered_json config = io::read_json(file, {.what = "a tokenizer's config", .bytes = 16 << 20, .values = 1 << 20});
    if (config.is_object() && config.contains("add_bos_token") && config["add_bos_token"].is_boolean())
      return config["add_bos_token"].get<bool>();
  }
  return tokenizer.name() != "bytes" && tokenizer.bos().has_value();
}

Encoder::Encoder(const Tokenizer& tokenizer, const ModelConfig& config, bool bos)
    : tokenizer_(tokenizer), bos_(bos), prefix_(prefix_of(tokenizer, config)) {}

std::vector<int64_t> Encoder::encode_plain(std::string_view text) const {
  if (text.empty()) return {};
  if (text.size() < kLong) return tokenizer_.encode(text);
  WordCache cache;
  std::vector<uint32_t> ids;
  tokenizer_.append(text, false, cache, ids);
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> Encoder::encode(std::string_view text) const {
  std::vector<int64_t> ids = encode_plain(text);
  if (bos_) ids.insert(ids.begin(), prefix_);
  return ids;
}

std::string Encoder::decode(std::span<const int64_t> ids) const { return tokenizer_.decode(ids); }

TokenPair Encoder::pair(std::string_view context, std::string_view continuation) const {
  TokenPair pair;
  if (context.empty()) {
    pair.context = {prefix_};
    pair.continuation = encode_plain(continuation);
    if (!pair.continuation.empty() && pair.continuation.front() == prefix_) pair.continuation.erase(pair.continuation.begin());
  } else {
    const std::string_view kept = right_strip(context);
    const std::vector<int64_t> whole = encode(std::string(context) + std::string(continuation));
    pair.context = encode(kept);
    if (whole.size() > pair.context.size())
      pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(pair.context.size()), whole.end());
    // A context of white space alone: lm-evaluation-harness would ask for the probability of a token that nothing precedes.
    if (pair.context.empty()) pair.context = {prefix_};
  }
  if (pair.continuation.empty()) {
    throw std::invalid_argument("the continuation \"" + std::string(continuation.substr(0, 40)) +
                                "\" adds no token to its context: there is nothing to score");
  }
  return pair;
}

}  // namespace cyfa::eval
