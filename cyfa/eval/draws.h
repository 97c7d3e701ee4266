// Random numbers of generated tasks. They come from Philox4x32-10 (Salmon et al., 2011), a generator that is defined by integers alone:
// draw n of a stream is block n under the stream's key, so equal seeds give equal samples on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "cyfa/io/hash.h"
#include "cyfa/kernels/sampling/sampling.h"

namespace cyfa::eval {

class Draws {
 public:
  // The stream of a name under a seed: streams of other names and seeds are independent of it.
  Draws(uint64_t seed, std::string_view name) : key_(io::hash64(name, seed)) {}

  // 64 random bits.
  uint64_t bits() { return sampling::random_bits(key_, next_++); }

  // Uniform from 0 to n - 1. n is far below 2^64, so the excess of some values (n / 2^64 of them) cannot be noticed.
  int64_t below(int64_t n) { return static_cast<int64_t>(sampling::high_product(bits(), static_cast<uint64_t>(n))); }

  // Puts a uniform choice of `count` elements in random order to the front; by default, shuffles the list (Fisher and Yates).
  template <class T>
  void shuffle(std::vector<T>& list, size_t count) {
    for (size_t i = 0; i < std::min(count, list.size()); ++i) {
      std::swap(list[i], list[i + static_cast<size_t>(below(static_cast<int64_t>(list.size() - i)))]);
    }
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    shuffle(list, list.size());
  }

  // `count` distinct numbers from 0 to n - 1 in the order in which they are drawn, for a count far below n or a small one.
  std::vector<int64_t> distinct(int64_t count, int64_t n) {
    std::vector<int64_t> all;
    while (static_cast<int64_t>(all.size()) < count) {
      const int64_t one = below(n);
      if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
    }
    return all;
  }

 private:
  uint64_t key_, next_ = 0;
};

}  // namespace cyfa::eval
