// See request.h.
#include "cyfa/eval/request.h"

namespace cyfa::eval {

Request continuation_request(std::string context, std::string continuation) {
  return {.kind = Request::Kind::kContinuation, .context = std::move(context), .continuation = std::move(continuation)};
}

Request rolling_request(std::string text) { return {.kind = Request::Kind::kRolling, .context = std::move(text)}; }

Request tokens_request(std::vector<int64_t> ids) { return {.kind = Request::Kind::kTokens, .ids = std::move(ids)}; }

Request generate_request(std::string prompt, std::vector<std::string> stop, int64_t max_tokens) {
  return {.kind = Request::Kind::kGenerate, .context = std::move(prompt), .stop = std::move(stop), .max_tokens = max_tokens};
}

}  // namespace cyfa::eval
