// See sequences.h.
#include "cyfa/ops/common/sequences.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "cyfa/ops/common/check.h"

namespace cyfa::ops {

namespace {

constexpr int64_t kMaxChunk = 4096;
constexpr int64_t kMaxSegmentChunks = 1 << 20;

}  // namespace

SegmentSize segment_size(const char* op, int64_t chunk, int64_t segment_chunks, int64_t heads, at::Device device) {
  if (chunk < 0 || chunk > kMaxChunk) {
    check::fail(op, "chunk is " + std::to_string(chunk) + ", wanted 1 to " + std::to_string(kMaxChunk) + ", or 0 for the default");
  }
  if (segment_chunks < 0 || segment_chunks > kMaxSegmentChunks) {
    check::fail(op, "segment_chunks is " + std::to_string(segment_chunks) + ", wanted 1 to " + std::to_string(kMaxSegmentChunks) +
                        ", or 0 for the default");
  }
  SegmentSize size;
  if (chunk > 0) size.chunk = chunk;
  if (segment_chunks > 0) size.chunks = segment_chunks;
  // On a CPU the working set should fit in the cache, so the number of lanes depends on the sequences' length. A GPU needs as much parallel
  // work as possible.
  size.lanes = device.is_cpu() ? 0 : std::max<int64_t>(1, 1024 / heads);
  return size;
}

SegmentSize segment_size(const char* op, at::IntArrayRef sizes) {
  const bool good =
      sizes.size() == 3 && sizes[0] >= 1 && sizes[0] <= kMaxChunk && sizes[1] >= 1 && sizes[1] <= kMaxSegmentChunks && sizes[2] >= 0;
  if (!good) {
    check::fail(op, "the segment size is " + c10::str(sizes) + ", wanted [chunk, chunks, lanes] with chunk 1 to " +
                        std::to_string(kMaxChunk) + ", chunks 1 to " + std::to_string(kMaxSegmentChunks) + " and lanes of at least 0");
  }
  return {sizes[0], sizes[1], sizes[2]};
}

std::vector<int64_t> batch_offsets(int64_t B, int64_t T) {
  std::vector<int64_t> offsets;
  for (int64_t b = 0; b <= B; ++b) offsets.push_back(b * T);
  return offsets;
}

std::vector<Segment> plan_segments(const std::vector<int64_t>& offsets, const SegmentSize& size) {
  const int64_t N = static_cast<int64_t>(offsets.size()) - 1;
  const auto length = [&](int64_t n) { return offsets[n + 1] - offsets[n]; };
  std::vector<int64_t> order(static_cast<size_t>(N));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });

  const int64_t stride = size.chunk * size.chunks;
  int64_t saved = 0;
  std::vector<Segment> plan;
  // lanes = 0: as many short sequences of equal length as fill a segment. Equal length, so that a sequence is divided in the same way, and
  // gives the same bits, in any batch.
  const auto lanes_from = [&](int64_t first) {
    if (size.lanes > 0) return std::min(size.lanes, N - first);
    const int64_t most = std::max<int64_t>(1, stride / std::max<int64_t>(1, length(order[first])));
    int64_t count = 1;
    while (count < most && first + count < N && length(order[first + count]) == length(order[first])) ++count;
    return count;
  };
  for (int64_t first = 0, last = 0; first < N; first = last) {
    last = first + lanes_from(first);
    const int64_t longest = length(order[first]);
    for (int64_t begin = 0; begin < longest; begin += stride) {
      Segment s;
      // A short sequence is not padded to a whole chunk; a multiple of 16 keeps the rows of matrix products even.
      s.chunk = size.whole_chunks ? size.chunk : std::min(size.chunk, (longest + 15) / 16 * 16);
      s.chunks = std::min(size.chunks, (longest - begin + s.chunk - 1) / s.chunk);
      for (int64_t i = first; i < last && length(order[i]) > begin; ++i) {
        s.sequence.push_back(order[i]);
        s.offset.push_back(offsets[order[i]] + begin);
        s.tokens.push_back(std::min(length(order[i]) - begin, stride));
      }
      if (begin > 0) {
        s.slot = saved;
        saved += s.lanes();
      }
      plan.push_back(std::move(s));
    }
  }
  return plan;
}

std::vector<WalkTask> plan_tasks(std::vector<Segment> segments, int64_t heads, at::Device device) {
  if (!device.is_cpu()) return {{0, heads, std::move(segments)}};
  // All segments of a group of lanes are one job. Jobs are dealt to buckets, whose number depends on the work only and not on the number of
  // threads, so that sums over several tasks always have the same order.
  constexpr int64_t kTasks = 32;
  std::vector<std::vector<Segment>> jobs;
  for (Segment& s : segments) {
    if (s.slot < 0) jobs.emplace_back();
    jobs.back().push_back(std::move(s));
  }
  const size_t buckets = std::min<size_t>(jobs.size(), static_cast<size_t>((kTasks + heads - 1) / heads));
  std::vector<WalkTask> tasks;
  for (int64_t h = 0; h < heads; ++h) {
    for (size_t b = 0; b < buckets; ++b) {
      WalkTask task{h, 1, {}};
      for (size_t j = b; j < jobs.size(); j += buckets) task.segments.insert(task.segments.end(), jobs[j].begin(), jobs[j].end());
      tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

void run_tasks(size_t count, at::Device device, const std::function<void(size_t)>& f) {
  std::atomic<size_t> next{0};
  const auto work = [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = next++; i < count; i = next++) f(i);
  };
  if (device.is_cpu()) {
    at::parallel_for(0, at::get_num_threads(), 1, work);
  } else {
    work(0, 1);
  }
}

int64_t saved_state_rows(bool packed, int64_t B, int64_t T, const SegmentSize& size) {
  const int64_t stride = size.chunk * size.chunks;
  return packed ? T / stride : B * std::max<int64_t>(0, (T + stride - 1) / stride - 1);
}

LaneStates::LaneStates(const at::Tensor& all, const Segment& s) : all_(all) {
  bool neighbours = true;
  for (int64_t l = 1; l < s.lanes(); ++l) neighbours = neighbours && s.sequence[l] == s.sequence[l - 1] + 1;
  if (neighbours && (s.lanes() == 1 || all.is_contiguous())) {
    lanes_ = all.narrow(0, s.sequence[0], s.lanes()).flatten(0, 1);
  } else {
    index_ = at::tensor(s.sequence, at::kLong).to(all.device());
    lanes_ = all.index_select(0, index_).flatten(0, 1);
  }
}

void LaneStates::put() {
  if (index_.defined()) all_.index_copy_(0, index_, lanes_.unflatten(0, {index_.size(0), all_.size(1)}));
}

void LaneStates::save(const at::Tensor& rows, const Segment& s, const LaneStates& states) {
  const at::Tensor to = rows.narrow(0, s.slot, s.lanes());
  to.copy_(states.lanes_.view(to.sizes()));
}

at::Tensor LaneStates::saved(const at::Tensor& rows, const Segment& s) {
  return rows.narrow(0, s.slot, s.lanes()).clone(at::MemoryFormat::Contiguous).flatten(0, 1);
}

SegmentCopy::SegmentCopy(const Segment& s, int64_t heads, at::Device device)
    : lanes_(s.lanes()), heads_(heads), chunks_(s.chunks), chunk_(s.chunk) {
  const int64_t places = chunks_ * chunk_;
  first_ = s.offset[0];
  tokens_ = s.tokens[0];
  distance_ = lanes_ > 1 ? s.offset[1] - s.offset[0] : 0;
  regular_ = distance_ >= 0;
  padded_ = false;
  for (int64_t l = 0; l < lanes_; ++l) {
    regular_ = regular_ && s.tokens[l] == tokens_ && s.offset[l] == first_ + l * distance_;
    padded_ = padded_ || s.tokens[l] < places;
  }
  if (regular_) return;
  std::vector<int64_t> index(static_cast<size_t>(lanes_ * places), 0);
  std::vector<int64_t> real;
  std::vector<int64_t> real_token;
  for (int64_t l = 0; l < lanes_; ++l) {
    for (int64_t i = 0; i < s.tokens[l]; ++i) {
      index[l * places + i] = s.offset[l] + i;
      real.push_back(l * places + i);
      real_token.push_back(s.offset[l] + i);
    }
  }
  const auto put = [&](const std::vector<int64_t>& x) { return at::tensor(x, at::kLong).to(device); };
  index_ = put(index);
  real_ = put(real);
  real_token_ = put(real_token);
  if (padded_) padding_ = at::ones({lanes_ * places}, at::kBool).to(device).index_fill_(0, real_, 0);
}

at::Tensor SegmentCopy::view(const at::Tensor& x) const {
  return x.as_strided({lanes_, tokens_, x.size(1), x.size(2)}, {distance_ * x.stride(0), x.stride(0), x.stride(1), x.stride(2)},
                      x.storage_offset() + first_ * x.stride(0));
}

at::Tensor SegmentCopy::gather(const at::Tensor& x, at::ScalarType dtype) const {
  const int64_t places = chunks_ * chunk_;
  const int64_t width = x.size(2);
  if (regular_ && !padded_ && lanes_ * heads_ == 1 && x.scalar_type() == dtype) {
    return x.as_strided({1, chunks_, chunk_, width}, {0, chunk_ * x.stride(0), x.stride(0), x.stride(2)},
                        x.storage_offset() + first_ * x.stride(0));
  }
  const auto options = x.options().dtype(dtype);
  at::Tensor y;  // [lanes, H, places, X]; places = chunks * C
  if (regular_) {
    y = padded_ ? at::zeros({lanes_, heads_, places, width}, options) : at::empty({lanes_, heads_, places, width}, options);
    y.narrow(2, 0, tokens_).copy_(view(x).transpose(1, 2));
  } else {
    at::Tensor picked = x.index_select(0, index_);
    if (padded_) picked.masked_fill_(padding_.view({-1, 1, 1}), 0);
    y = at::empty({lanes_, heads_, places, width}, options);
    y.copy_(picked.view({lanes_, places, heads_, width}).transpose(1, 2));
  }
  return y.view({lanes_ * heads_, chunks_, chunk_, width});
}

at::Tensor SegmentCopy::gather_gate(const at::Tensor& x, at::ScalarType dtype) const { return gather(x.unsqueeze(-1), dtype).squeeze(-1); }

void SegmentCopy::scatter(const at::Tensor& y, const at::Tensor& out) const {
  const at::Tensor places = y.reshape({lanes_, heads_, chunks_ * chunk_, y.size(-1)}).transpose(1, 2);  // [lanes, places, H, X]
  if (regular_) {
    view(out).copy_(places.narrow(1, 0, tokens_));
  } else {
    const at::Tensor flat = places.reshape({-1, heads_, y.size(-1)});
    out.index_copy_(0, real_token_, flat.index_select(0, real_).to(out.scalar_type()));
  }
}

void SegmentCopy::scatter_gate(const at::Tensor& y, const at::Tensor& out) const { scatter(y.unsqueeze(-1), out.unsqueeze(-1)); }

}  // namespace cyfa::ops
