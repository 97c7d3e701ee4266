#include "cyfa/train/watch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace cyfa {
namespace {

std::string range_words(const char* what, double came, double least, double most) {
  std::array<char, 160> text = {};
  std::snprintf(text.data(), text.size(), "the %s was %.4g, after %.4g to %.4g in the steps before", what, came, least, most);
  return text.data();
}

}  // namespace

bool TrainingWatch::add(int64_t step, double loss, double norm) {
  std::string words;
  if (losses_.size() >= kLeast) {
    const auto [least, most] = std::minmax_element(losses_.begin(), losses_.end());
    const auto [small, large] = std::minmax_element(norms_.begin(), norms_.end());
    const double far = sign_ ? *most : *most + std::max(*most - *least, kLossMargin * std::abs(*most));
    if (!(loss <= far)) {
      words = range_words("loss", loss, *least, *most);
    } else if (!(norm <= kNormFactor * *large)) {
      words = range_words("gradient norm", norm, *small, *large);
    }
  }
  if (!words.empty()) {
    if (sign_) return false;
    sign_ = step;
    words_ = words;
    return true;
  }
  sign_.reset();
  losses_.push_back(loss);
  norms_.push_back(norm);
  if (losses_.size() > kRecent) {
    losses_.pop_front();
    norms_.pop_front();
  }
  return false;
}

Json TrainingWatch::json() const {
  return {{"losses", losses_}, {"norms", norms_}, {"sign", sign_ ? Json(*sign_) : Json(nullptr)}, {"words", words_}};
}

TrainingWatch TrainingWatch::parse(const Json& json) {
  TrainingWatch watch;
  const auto figures = [&](const char* key, std::deque<double>& to) {
    if (!json.contains(key) || !json[key].is_array() || json[key].size() > kRecent) return false;
    for (const Json& one : json[key]) {
      if (!one.is_number()) return false;
      to.push_back(one.get<double>());
    }
    return true;
  };
  if (!json.is_object() || !figures("losses", watch.losses_) || !figures("norms", watch.norms_) ||
      watch.losses_.size() != watch.norms_.size()) {
    return {};
  }
  if (json.contains("sign") && json["sign"].is_number_integer()) watch.sign_ = json["sign"].get<int64_t>();
  if (json.contains("words") && json["words"].is_string()) watch.words_ = json["words"].get<std::string>();
  return watch;
}

}  // namespace cyfa
