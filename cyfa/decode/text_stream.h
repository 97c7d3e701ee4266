// Incremental text output with stop strings. Text is released as soon as later tokens cannot change it: complete UTF-8 characters only, and
// never a part of a stop string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa {

// The text of one completion.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Appends bytes and returns the text that is released, as UTF-8. Returns nothing after a stop string has occurred.
  std::string add(std::string_view bytes);
  // Returns the remaining text when there are no more tokens.
  std::string finish();

  bool stopped() const { return stopped_; }          // whether a stop string has occurred
  const std::string& text() const { return text_; }  // all released text

 private:
  std::string give(size_t bytes);  // releases the first bytes of pending_

  std::vector<std::string> stops_;
  std::string pending_;  // bytes not yet released
  std::string text_;
  bool stopped_ = false;
};

}  // namespace cyfa
