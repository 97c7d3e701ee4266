// One self-contained HTML page about a short text: the text coloured by clock increment, the slots by age after each token, what each token
// reads and who wrote it. The page needs no network; cyfa/analysis/page.html is its template.
#pragma once

#include "cyfa/analysis/clock.h"
#include "cyfa/data/tokenizer.h"

namespace cyfa::analysis {

// The page for ids [T], from an empty state. `title` is its heading; it opens at head `shown` of clock_heads(). Its size grows with T times
// the slots of all heads: 20 MB for 400M parameters at 512 tokens, 1 MB for a small model.
std::string clock_page(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Tokenizer& tokenizer, const std::string& title,
                       size_t shown, const Progress& progress = {});

// Standard base64 with padding, which the page decodes with atob().
std::string base64(const std::vector<uint8_t>& bytes);

}  // namespace cyfa::analysis
