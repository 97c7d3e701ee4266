// What a task asks of a model, and the answers. Tasks (task.h) write requests, the scorer (scorer.h) answers them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cyfa::eval {

// One question to the model. The functions below make the four kinds.
struct Request {
  enum class Kind {
    kContinuation,  // the log-likelihood of `continuation` after `context`, and whether it is the greedy one
    kRolling,       // the log-likelihood of the text `context`, in windows of at most max_length tokens
    kTokens,        // the log-likelihood of each of `ids` but the first, in one sequence of any length
    kGenerate,      // the greedy continuation of the prompt `context`
  };

  Kind kind = Kind::kContinuation;
  std::string context = {};
  std::string continuation = {};
  std::vector<int64_t> ids = {};

  // kGenerate: the text ends before the first of `stop`, at a token that ends texts, or after max_tokens tokens.
  std::vector<std::string> stop = {};
  int64_t max_tokens = 256;
  bool bos = true;           // false: no BOS token before the prompt, whatever the BOS policy says
  int64_t truncated = 0;     // tokens that the task has left out of the prompt
  bool may_truncate = true;  // a prompt longer than max_length - max_tokens loses its first tokens; false: it is kept whole
};

Request continuation_request(std::string context, std::string continuation);
Request rolling_request(std::string text);
Request tokens_request(std::vector<int64_t> ids);
Request generate_request(std::string prompt, std::vector<std::string> stop, int64_t max_tokens);

// The answer to a Request.
struct Response {
  double log_likelihood = 0;             // natural logarithm, summed over the scored tokens
  bool greedy = false;                   // kContinuation: every scored token is the most likely one (of equal ones the first)
  int64_t tokens = 0;                    // scored or generated tokens
  int64_t truncated = 0;                 // tokens of the context or prompt that the model did not see for lack of room
  std::vector<float> each = {};          // kTokens: the log-likelihood of ids[1], ids[2], ...
  std::optional<std::string> text = {};  // kGenerate: the text, which may be empty; absent for the other kinds
};

}  // namespace cyfa::eval
