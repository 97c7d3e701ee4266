// Text that grows token by token, given out as soon as no later token can change it: whole characters only, and never part of a stop
// string.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cyfa {

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes more bytes; returns what can be shown now, as UTF-8. After a stop string has been seen, nothing more comes.
  std::string add(std::string_view bytes);
  // What is left when no more tokens come.
  std::string finish();

  bool stopped() const { return stopped_; }
  const std::string& text() const { return text_; }  // all that was given out

 private:
  std::string give(size_t bytes);

  std::vector<std::string> stops_;
  std::string pending_;  // bytes not yet given out
  std::string text_;
  bool stopped_ = false;
};

}  // namespace cyfa
