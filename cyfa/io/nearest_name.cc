#include "cyfa/io/nearest_name.h"

#include <algorithm>
#include <cctype>

namespace cyfa::io {
namespace {

constexpr size_t kLongest = 64;  // longer words are no misspelt names, and comparing them would take long

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// Edits that make b of a. rows[i] is the row of the table for the first i letters of a.
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = i + j;
        continue;
      }
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
    }
  }
  return rows[a.size()][b.size()];
}

size_t allowed_edits(size_t letters) { return letters <= 3 ? 0 : letters <= 5 ? 1 : letters / 3; }

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  if (word.empty() || word.size() > kLongest) return "";
  const std::string given = lower(word);
  const auto letters = static_cast<size_t>(std::count_if(given.begin(), given.end(), [](char c) { return c != '-'; }));
  std::string nearest;
  size_t fewest = allowed_edits(letters) + 1;
  for (const std::string& name : names) {
    const size_t count = edits(given, lower(name));
    if (count >= fewest) continue;
    fewest = count;
    nearest = name;
  }
  if (!nearest.empty() || letters < 2) return nearest;
  const auto begins = [&](const std::string& name) { return lower(name).starts_with(given); };
  const auto found = std::find_if(names.begin(), names.end(), begins);
  return found != names.end() && std::count_if(names.begin(), names.end(), begins) == 1 ? *found : "";
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest_name(word, names);
  return name.empty() ? "" : "; did you mean " + name + "?";
}

}  // namespace cyfa::io
