// Packed sequences, cut into segments of chunks that the portable path works on together. Packed is the general case; a plain
// batch [B, T] is B sequences of one length.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace cyfa::ops {

// One piece of work: the next tokens of each of `lanes` sequences, padded to chunks * C tokens. A padded token neither writes,
// decays nor moves the clock.
struct Segment {
  std::vector<int64_t> sequence;  // [lanes]
  std::vector<int64_t> offset;    // [lanes] first token on the flat token axis
  std::vector<int64_t> tokens;    // [lanes] real tokens, never rising along the lanes
  int64_t chunk = 0;              // tokens a chunk: C, or less where no lane is that long
  int64_t chunks = 0;
  int64_t slot = -1;  // first row of the states saved at this segment's start; -1: the sequences start here

  int64_t lanes() const { return static_cast<int64_t>(sequence.size()); }
};

// How a pass over sequences is cut up. What is saved for backward depends on chunk and chunks alone, so that its shape is
// known without a look at the data or the device.
struct SegmentSize {
  int64_t chunk = 64;  // C, tokens
  int64_t chunks = 8;  // chunks of a segment; the states at its start are what forward saves for backward
  int64_t lanes = 1;   // sequences side by side; 0: by their length
};

// What a call asks for, 0 meaning the measured default. Throws ArgumentError for what cannot be.
SegmentSize segment_size(const char* op, int64_t chunk, int64_t segment_chunks, int64_t heads, at::Device device);

// Borders of B sequences of T tokens on the flat token axis.
std::vector<int64_t> batch_offsets(int64_t B, int64_t T);

// offsets: [N + 1] borders on the flat token axis. Each sequence's segments come in order; empty sequences have none.
std::vector<Segment> plan_segments(const std::vector<int64_t>& offsets, const SegmentSize& size);

// Segments that one thread walks for some of the heads. Tasks share nothing that they write.
struct WalkTask {
  int64_t head = 0;
  int64_t heads = 0;
  std::vector<Segment> segments;
};

// On a CPU a task is one head of a few sequences, which keeps its working set in one core's cache; with fewer such tasks than
// threads, and on any other device, all heads go together and ATen parallelises inside. The split does not change what is
// computed for a sequence.
std::vector<WalkTask> plan_tasks(std::vector<Segment> segments, int64_t heads, at::Device device);

// Runs f(i) for every task, tasks side by side where plan_tasks made several, below autograd.
void run_tasks(const std::vector<WalkTask>& tasks, const std::function<void(size_t)>& f);

// Rows of saved states that a plan needs at most: B sequences of T tokens, or one packed batch of T tokens.
int64_t saved_state_rows(bool packed, int64_t B, int64_t T, const SegmentSize& size);

// The running states of a segment's sequences, [lanes * H, ...] rows of `all` [N, H, ...]: a view where one exists, else a copy
// that `put` writes back.
class LaneStates {
 public:
  LaneStates(const at::Tensor& all, const Segment& segment);
  const at::Tensor& get() const { return lanes_; }
  void put();

  // Rows `segment.slot` .. of the states saved for backward, [rows, H, ...].
  static void save(const at::Tensor& rows, const Segment& segment, const LaneStates& states);
  static at::Tensor saved(const at::Tensor& rows, const Segment& segment);  // a copy, [lanes * H, ...]

 private:
  at::Tensor all_, index_, lanes_;
};

// Moves one segment's tokens between the flat [tokens, H, X] layout of the caller and the [n, g, C, X] layout that batched matrix
// products want: n = lanes * H, g chunks.
class SegmentCopy {
 public:
  SegmentCopy(const Segment& segment, int64_t heads, at::Device device);

  // [n, g, C, X] of type `dtype`, padded with zeros; may be a view of x [tokens, H, X], so it is not to be written.
  at::Tensor gather(const at::Tensor& x, at::ScalarType dtype) const;
  // The same for x [tokens, H]: [n, g, C].
  at::Tensor gather_gate(const at::Tensor& x, at::ScalarType dtype) const;

  // Writes the real tokens of y [n, g, C, X] into out [tokens, H, X].
  void scatter(const at::Tensor& y, const at::Tensor& out) const;
  void scatter_gate(const at::Tensor& y, const at::Tensor& out) const;

 private:
  at::Tensor view(const at::Tensor& x) const;  // [lanes, tokens, H, X] of a regular segment, no copy

  int64_t lanes_, heads_, chunks_, chunk_;
  bool regular_;  // lanes lie at equal distances and have equal lengths: a strided view serves
  bool padded_;   // some lane has fewer tokens than chunks * C
  int64_t first_, distance_, tokens_;
  at::Tensor index_;       // irregular: [lanes * g * C] flat token of each place, padding at 0
  at::Tensor real_;        // irregular: places that hold a real token
  at::Tensor real_token_;  // irregular: their flat tokens
  at::Tensor padding_;     // irregular and padded: mask of the padded places
};

}  // namespace cyfa::ops
