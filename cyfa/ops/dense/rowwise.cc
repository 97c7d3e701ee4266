// The CPU kernels of rowwise.h on tensors, and dispatch to rowwise_cuda.h for tensors on a GPU.
#include "cyfa/ops/dense/rowwise.h"

#include <ATen/Parallel.h>

#include "cyfa/kernels/rowwise/rowwise.h"
#include "cyfa/ops/dense/rowwise_cuda.h"

namespace cyfa::ops::row_kernels {
namespace {

// Numbers per task. Sums over rows are computed per task and then over tasks, so that their order does not depend on the number of threads.
constexpr int64_t kTaskNumbers = 1 << 16;

bool on_cpu(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kFloat; }

struct Tasks {
  int64_t rows, width, each, count;

  explicit Tasks(const at::Tensor& x) : width(std::max<int64_t>(1, x.size(-1))) {
    rows = x.numel() / width;
    each = std::max<int64_t>(1, kTaskNumbers / width);
    count = (rows + each - 1) / each;
  }

  // Calls f(task, first row, end row).
  template <class F>
  void run(const F& f) const {
    at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i, i * each, std::min(rows, (i + 1) * each));
    });
  }
};

const float* data(const at::Tensor& x) { return x.defined() ? x.const_data_ptr<float>() : nullptr; }
float* written(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }
template <class T>
T* from(T* array, int64_t offset) {
  return array == nullptr ? nullptr : array + offset;
}
at::Tensor plain(const at::Tensor& x) { return x.defined() ? x.contiguous() : x; }
at::Tensor like(const at::Tensor& x) { return x.defined() ? at::empty_like(x, at::MemoryFormat::Contiguous) : x; }

// A run of consecutive tokens of one sequence, at least W - 1 long unless it is the sequence's last.
struct Run {
  int64_t sequence, first, last;  // rows of the sequence
  int64_t begin, end;             // rows of the run
};

std::vector<Run> runs_of(const std::vector<int64_t>& offsets, int64_t each) {
  std::vector<Run> runs;
  for (size_t n = 0; n + 1 < offsets.size(); ++n) {
    for (int64_t begin = offsets[n]; begin < offsets[n + 1]; begin += each) {
      runs.push_back({static_cast<int64_t>(n), offsets[n], offsets[n + 1], begin, std::min(offsets[n + 1], begin + each)});
    }
  }
  return runs;
}

// The arguments of a convolution in the form that the kernels need.
struct Conv {
  int64_t D, W, past;
  at::Tensor x, tap, zeros, before;  // tap: [W, D]
  std::vector<Run> runs;

  Conv(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& start, const std::vector<int64_t>& offsets)
      : D(input.size(1)),
        W(weight.size(1)),
        past(W - 1),
        x(input.contiguous()),
        tap(weight.to(at::kFloat).t().contiguous()),
        before(plain(start)) {
    if (!before.defined()) zeros = at::zeros({past, D}, x.options());
    runs = runs_of(offsets, std::max<int64_t>({W, 16, (1 << 15) / std::max<int64_t>(1, D)}));
  }

  // The W - 1 rows before a run.
  const float* rows_before(const Run& run) const {
    if (run.begin > run.first) return data(x) + (run.begin - past) * D;
    return before.defined() ? data(before) + run.sequence * past * D : data(zeros);
  }

  template <class F>
  void each_run(const F& f) const {
    at::parallel_for(0, static_cast<int64_t>(runs.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(i, runs[static_cast<size_t>(i)]);
    });
  }
};

}  // namespace

bool norm_takes(const at::Tensor& x) { return on_cpu(x) || norm_takes_cuda(x); }
bool swiglu_takes(const at::Tensor& x) { return on_cpu(x) || swiglu_takes_cuda(x); }
bool conv_takes(const at::Tensor& x, int64_t taps) { return on_cpu(x) || conv_takes_cuda(x, taps); }

Norm norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& gate) {
  const at::Tensor in = plain(x), scale = weight.to(at::kFloat).contiguous(), by = plain(gate);
  if (x.is_cuda()) return norm_cuda(in, scale, eps, by);
  const Tasks tasks(in);
  const Norm out = {like(in), at::empty({tasks.rows}, in.options()), at::Tensor()};
  tasks.run([&](int64_t, int64_t begin, int64_t end) {
    const int64_t at = begin * tasks.width;
    const auto small = static_cast<float>(eps);
    float* rate = written(out.rate) + begin;
    if (by.defined()) {
      rowwise::gated_rms_norm(end - begin, tasks.width, data(in) + at, data(scale), small, data(by) + at, rate, written(out.y) + at);
    } else {
      rowwise::rms_norm(end - begin, tasks.width, data(in) + at, tasks.width, data(scale), small, rate, nullptr, written(out.y) + at);
    }
  });
  return out;
}

NormGrads norm_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, const at::Tensor& rate,
                        const at::Tensor& grad) {
  const at::Tensor in = plain(x), scale = weight.to(at::kFloat).contiguous(), by = plain(gate), g = plain(grad);
  if (x.is_cuda()) return norm_backward_cuda(in, scale, by, rate, g);
  const Tasks tasks(in);
  NormGrads out = {like(in), at::Tensor(), like(by)};
  const at::Tensor parts = at::zeros({tasks.count, tasks.width}, in.options());
  tasks.run([&](int64_t task, int64_t begin, int64_t end) {
    const int64_t at = begin * tasks.width;
    rowwise::norm_backward(end - begin, tasks.width, data(in) + at, data(rate) + begin, data(scale), from(data(by), at), data(g) + at,
                           written(out.x) + at, from(written(out.gate), at), written(parts) + task * tasks.width);
  });
  out.weight = parts.sum(0);
  return out;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor by = plain(gate), times = plain(up);
  if (gate.is_cuda()) return swiglu_cuda(by, times);
  const at::Tensor out = like(by);
  at::parallel_for(0, by.numel(), 16384, [&](int64_t begin, int64_t end) {
    rowwise::swiglu(end - begin, data(by) + begin, from(data(times), begin), written(out) + begin);
  });
  return out;
}

std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& grad) {
  const at::Tensor by = plain(gate), times = plain(up), g = plain(grad);
  if (gate.is_cuda()) return swiglu_backward_cuda(by, times, g);
  std::pair<at::Tensor, at::Tensor> out = {like(by), like(times)};
  at::parallel_for(0, by.numel(), 16384, [&](int64_t begin, int64_t end) {
    rowwise::swiglu_backward(end - begin, data(by) + begin, from(data(times), begin), data(g) + begin, written(out.first) + begin,
                             from(written(out.second), begin));
  });
  return out;
}

at::Tensor conv(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                const std::vector<int64_t>& offsets) {
  const at::Tensor shift = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  if (x.is_cuda()) return conv_cuda(plain(x), weight.to(at::kFloat).contiguous(), shift, plain(before), offsets);
  const Conv c(x, weight, before, offsets);
  const at::Tensor y = like(c.x);
  c.each_run([&](int64_t, const Run& run) {
    rowwise::conv(run.end - run.begin, c.D, c.W, c.rows_before(run), data(c.x) + run.begin * c.D, data(c.tap), data(shift),
                  written(y) + run.begin * c.D);
  });
  return y;
}

ConvGrads conv_backward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& before,
                        const std::vector<int64_t>& offsets, const at::Tensor& grad) {
  const at::Tensor g = plain(grad);
  if (x.is_cuda()) return conv_backward_cuda(plain(x), weight.to(at::kFloat).contiguous(), bias.defined(), plain(before), offsets, g);
  const Conv c(x, weight, before, offsets);
  const auto count = static_cast<int64_t>(c.runs.size());
  const at::Tensor parts = at::zeros({count, c.W + 1, c.D}, c.x.options());
  ConvGrads out;
  out.x = like(c.x);
  if (before.defined()) out.before = at::zeros_like(c.before);
  c.each_run([&](int64_t i, const Run& run) {
    const int64_t tokens = run.end - run.begin, at = run.begin * c.D;
    float* sums = written(parts) + i * (c.W + 1) * c.D;
    rowwise::conv_backward(tokens, std::min(c.past, run.last - run.end), c.D, c.W, data(g) + at, data(c.tap), written(out.x) + at);
    rowwise::conv_backward_weight(tokens, c.D, c.W, c.rows_before(run), data(c.x) + at, data(g) + at, sums,
                                  bias.defined() ? sums + c.W * c.D : nullptr);
    if (out.before.defined() && run.begin == run.first) {
      rowwise::conv_backward_before(run.last - run.first, c.D, c.W, data(g) + at, data(c.tap),
                                    written(out.before) + run.sequence * c.past * c.D);
    }
  });
  const at::Tensor sum = parts.sum(0);
  out.weight = sum.narrow(0, 0, c.W).t().contiguous();
  if (bias.defined()) out.bias = sum.select(0, c.W);
  return out;
}

}  // namespace cyfa::ops::row_kernels
