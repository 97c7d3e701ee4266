#include "cyfa/decode/text_stream.h"

#include <algorithm>

#include "cyfa/data/utf8.h"

namespace cyfa {

std::string TextStream::give(size_t bytes) {
  std::string out = as_utf8(std::string_view(pending_).substr(0, bytes));
  pending_.erase(0, bytes);
  text_ += out;
  return out;
}

std::string TextStream::add(std::string_view bytes) {
  if (stopped_) return "";
  pending_ += bytes;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    if (!stop.empty()) first = std::min(first, pending_.find(stop));
  }
  if (first != std::string::npos) {
    std::string out = give(first);
    pending_.clear();
    stopped_ = true;
    return out;
  }
  size_t held = 0;  // length of the longest suffix that is a prefix of a stop string
  for (const std::string& stop : stops_) {
    const size_t most = std::min(stop.empty() ? 0 : stop.size() - 1, pending_.size());
    for (size_t n = most; n > held; --n) {
      if (pending_.compare(pending_.size() - n, n, stop, 0, n) == 0) held = n;
    }
  }
  return give(whole_characters(std::string_view(pending_).substr(0, pending_.size() - held)));
}

std::string TextStream::finish() { return stopped_ ? "" : give(pending_.size()); }

}  // namespace cyfa
