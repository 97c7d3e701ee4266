// See rolling.h.
#include "cyfa/eval/rolling.h"

#include <algorithm>

namespace cyfa::eval {

std::vector<TokenPair> rolling_windows(const std::vector<int64_t>& ids, int64_t prefix, int64_t max_length) {
  const auto all = static_cast<int64_t>(ids.size());
  const auto part = [&](int64_t begin, int64_t end) { return std::vector<int64_t>(ids.begin() + begin, ids.begin() + end); };
  std::vector<TokenPair> windows;
  int64_t done = std::min(max_length, all);
  if (done > 0) windows.push_back({{prefix}, part(0, done)});
  while (done < all) {
    const int64_t end = done + std::min(max_length, all - done);
    windows.push_back({part(end - max_length - 1, done), part(done, end)});
    done = end;
  }
  return windows;
}

}  // namespace cyfa::eval
