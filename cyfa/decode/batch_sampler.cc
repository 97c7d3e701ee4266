#include "cyfa/decode/batch_sampler.h"

#include <ATen/Parallel.h>

#include <deque>

#include "cyfa/decode/sampling_rule.h"

#ifdef CYFA_CUDA
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>

#include "cyfa/kernels/sampling/sample_cuda.h"
#endif

namespace cyfa {
namespace {

// The tokens of a sequence that the repetition penalty applies to; [] without a penalty.
at::Tensor no_tokens(const SamplingOptions& options, int64_t rows, int64_t vocab_size) {
  return at::zeros({options.repetition_penalty == 1 ? 0 : rows, vocab_size}, at::kByte);
}

void mark(const at::Tensor& seen, std::span<const int64_t> history) {
  auto* marks = seen.mutable_data_ptr<uint8_t>();
  for (const int64_t id : history) {
    if (id >= 0 && id < seen.size(0)) marks[id] = 1;
  }
}

// On the host; logits of a GPU are copied.
class HostSampler final : public BatchSampler {
 public:
  HostSampler(const SamplingOptions& options, int64_t rows, int64_t vocab_size)
      : options_(options),
        ids_(at::zeros({rows}, at::kLong)),
        positions_(static_cast<size_t>(rows)),
        seen_(no_tokens(options, rows, vocab_size)) {}

  bool asynchronous() const override { return false; }
  const at::Tensor& ids() const override { return ids_; }

  void begin(int64_t row, std::span<const int64_t> history) override {
    positions_[static_cast<size_t>(row)] = static_cast<int64_t>(history.size());
    ids_.mutable_data_ptr<int64_t>()[row] = history.back();
    if (seen_.size(0) > 0) mark(seen_[row].zero_(), history);
  }

  void draw(const at::Tensor& logits, int64_t first) override {
    const at::Tensor own = logits.to(at::kCPU).contiguous();
    const auto width = static_cast<size_t>(own.size(1));
    std::vector<int64_t> drawn(static_cast<size_t>(own.size(0)));
    at::parallel_for(0, own.size(0), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = first + i;
        const std::span<uint8_t> seen =
            seen_.size(0) == 0 ? std::span<uint8_t>() : std::span(seen_.mutable_data_ptr<uint8_t>() + row * seen_.size(1), width);
        const std::span<const float> of_row(own.const_data_ptr<float>() + i * own.size(1), width);
        const int64_t id = sample(options_, of_row, positions_[static_cast<size_t>(row)]++, seen);
        if (id >= 0 && !seen.empty()) seen[static_cast<size_t>(id)] = 1;
        ids_.mutable_data_ptr<int64_t>()[row] = std::max<int64_t>(id, 0);
        drawn[static_cast<size_t>(i)] = id;
      }
    });
    unread_.push_back(std::move(drawn));
  }

  std::vector<int64_t> read() override {
    std::vector<int64_t> drawn = std::move(unread_.front());
    unread_.pop_front();
    return drawn;
  }

 private:
  SamplingOptions options_;
  at::Tensor ids_;
  std::vector<int64_t> positions_;
  at::Tensor seen_;  // [rows, vocab_size] uint8, or no rows
  std::deque<std::vector<int64_t>> unread_;
};

#ifdef CYFA_CUDA

// On a GPU. The kernel writes the drawn tokens to pinned host memory.
class CudaSampler final : public BatchSampler {
 public:
  CudaSampler(const SamplingOptions& options, int64_t rows, int64_t vocab_size, at::Device device)
      : rule_(sampling_rule(options)), device_(device) {
    const auto on_device = at::TensorOptions(at::kLong).device(device);
    ids_ = at::zeros({rows}, on_device);
    positions_ = at::zeros({rows}, on_device);
    seen_ = no_tokens(options, rows, vocab_size).to(device);
    for (Draw& draw : draws_) draw.tokens = at::empty({rows}, at::TensorOptions(at::kLong).pinned_memory(true));
  }

  ~CudaSampler() override {  // torch's allocator does not know of the kernel's writes and would reuse the memory too early
    try {
      while (read_ < drawn_) read();
    } catch (const c10::Error&) {  // the device is lost, and the writes with it
    }
  }

  bool asynchronous() const override { return true; }
  const at::Tensor& ids() const override { return ids_; }

  void begin(int64_t row, std::span<const int64_t> history) override {
    positions_[row].fill_(static_cast<int64_t>(history.size()));
    ids_[row].fill_(history.back());
    if (seen_.size(0) == 0) return;
    const at::Tensor seen = at::zeros({seen_.size(1)}, at::kByte);
    mark(seen, history);
    seen_[row].copy_(seen);
  }

  void draw(const at::Tensor& logits, int64_t first) override {
    TORCH_CHECK(drawn_ - read_ < draws_.size(), "sampler: two draws are unread; read one first");
    const at::Tensor own = logits.contiguous();
    Draw& to = draws_[drawn_ % draws_.size()];
    to.count = own.size(0);
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device_.index());
    sampling::SampleCuda p;
    p.rule = rule_;
    p.rows = own.size(0);
    p.vocab = own.size(1);
    p.logits = own.const_data_ptr<float>();
    p.ids = ids_.mutable_data_ptr<int64_t>() + first;
    p.drawn = to.tokens.mutable_data_ptr<int64_t>();
    p.positions = reinterpret_cast<uint64_t*>(positions_.mutable_data_ptr<int64_t>()) + first;
    p.seen = seen_.size(0) == 0 ? nullptr : seen_.mutable_data_ptr<uint8_t>() + first * seen_.size(1);
    C10_CUDA_CHECK(sampling::sample_cuda(p, stream));
    to.done.record(stream);
    ++drawn_;
  }

  std::vector<int64_t> read() override {
    TORCH_CHECK(read_ < drawn_, "sampler: no draw is unread");
    const Draw& from = draws_[read_ % draws_.size()];
    from.done.synchronize();
    ++read_;
    const auto* tokens = from.tokens.const_data_ptr<int64_t>();
    return {tokens, tokens + from.count};
  }

 private:
  struct Draw {
    at::Tensor tokens;  // pinned
    int64_t count = 0;
    c10::Event done{at::kCUDA};
  };

  sampling::Rule rule_;
  at::Device device_;
  at::Tensor ids_, positions_;
  at::Tensor seen_;  // [rows, vocab_size] uint8, or no rows
  std::array<Draw, 2> draws_;
  size_t drawn_ = 0, read_ = 0;
};

#endif

}  // namespace

std::unique_ptr<BatchSampler> make_sampler(const SamplingOptions& options, int64_t rows, int64_t vocab_size, at::Device device) {
  options.check();
#ifdef CYFA_CUDA
  if (device.is_cuda() && vocab_size < int64_t{1} << 24) return std::make_unique<CudaSampler>(options, rows, vocab_size, device);
#else
  (void)device;
#endif
  return std::make_unique<HostSampler>(options, rows, vocab_size);
}

}  // namespace cyfa
