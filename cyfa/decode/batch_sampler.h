// Samplers of a batch: they draw the next token of every sequence on the device that computes the logits, so that a decode step can take
// the tokens without a round trip to the host. Equal logits give equal tokens on every device.
#pragma once

#include <torch/types.h>

#include <memory>
#include <span>
#include <vector>

#include "cyfa/decode/sampler.h"

namespace cyfa {

class BatchSampler {
 public:
  virtual ~BatchSampler() = default;

  // Whether draw() returns before the tokens are known.
  virtual bool asynchronous() const = 0;
  // The sequence in `row` is now this one, not empty.
  virtual void begin(int64_t row, std::span<const int64_t> history) = 0;
  // The last token of each row, int64 [rows], for the next step: always the same tensor. 0 where there is none to draw.
  virtual const at::Tensor& ids() const = 0;

  // Draws the next tokens of rows first .. first + n - 1 from fp32 logits [n, vocab_size] on the device. At most two draws may be unread.
  virtual void draw(const at::Tensor& logits, int64_t first = 0) = 0;
  // Waits for the oldest unread draw and returns its tokens, -1 where the largest logit is not finite.
  virtual std::vector<int64_t> read() = 0;
};

std::unique_ptr<BatchSampler> make_sampler(const SamplingOptions& options, int64_t rows, int64_t vocab_size, at::Device device);

}  // namespace cyfa
