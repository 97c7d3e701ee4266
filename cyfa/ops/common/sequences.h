// Division of packed sequences into segments of chunks, the unit of work of the portable path, and copies between the caller's layout and
// that of batched matrix products. A plain batch [B, T] is treated as B packed sequences of equal length. Used by cyclic_flow and by the
// recurrences.
#pragma once

#include <torch/types.h>

#include <functional>
#include <vector>

namespace cyfa::ops {

// The next tokens of each of `lanes` sequences, padded to chunks * C tokens. Padding tokens neither write, decay nor move the clock.
struct Segment {
  std::vector<int64_t> sequence;  // [lanes] index of the sequence
  std::vector<int64_t> offset;    // [lanes] first token, as an index into the tokens of all sequences
  std::vector<int64_t> tokens;    // [lanes] real tokens; never increases from lane to lane
  int64_t chunk = 0;              // tokens per chunk: C, or fewer if all lanes are shorter
  int64_t chunks = 0;
  int64_t slot = -1;  // first row of the states saved at this segment's start; -1: the sequences start here

  int64_t lanes() const { return static_cast<int64_t>(sequence.size()); }
};

// How sequences are divided. What forward saves for backward depends on chunk and chunks only, so its shape is known without looking at the
// data or the device.
struct SegmentSize {
  int64_t chunk = 64;         // C, tokens per chunk
  int64_t chunks = 8;         // chunks per segment; forward saves the states at each segment's start for backward
  int64_t lanes = 1;          // sequences processed together; 0: depends on their length
  bool whole_chunks = false;  // chunks have C tokens even where all sequences are shorter
};

// The sizes that a call asks for; 0 selects the measured default. Throws ArgumentError for impossible values.
SegmentSize segment_size(const char* op, int64_t chunk, int64_t segment_chunks, int64_t heads, at::Device device);

// The sizes that come through the dispatcher as the list {chunk, chunks, lanes}. Throws ArgumentError unless they are ones that
// segment_size could have made.
SegmentSize segment_size(const char* op, at::IntArrayRef sizes);

// Offsets [B + 1] of B sequences of T tokens.
std::vector<int64_t> batch_offsets(int64_t B, int64_t T);

// The segments of packed sequences. offsets: [N + 1] sequence boundaries. The segments of a sequence come in order; empty sequences have
// none.
std::vector<Segment> plan_segments(const std::vector<int64_t>& offsets, const SegmentSize& size);

// Segments that one thread processes in order, for some of the heads. Tasks write to disjoint memory.
struct WalkTask {
  int64_t head = 0;  // first head
  int64_t heads = 0;
  std::vector<Segment> segments;
};

// Groups segments into tasks. On a CPU a task is one head of a few sequences, so that its working set stays in one core's cache; on any
// other device there is a single task with all heads. The grouping depends on the work alone.
std::vector<WalkTask> plan_tasks(std::vector<Segment> segments, int64_t heads, at::Device device);

// Runs f(i) for i = 0 .. count - 1, below autograd. On a CPU each call runs on one thread, also if there are fewer of them than threads:
// with threads inside a call, ATen and its matrix products would round differently for different numbers of threads.
void run_tasks(size_t count, at::Device device, const std::function<void(size_t)>& f);

// Upper bound of the rows of saved states that a plan needs, for B sequences of T tokens or one packed batch of T tokens.
int64_t saved_state_rows(bool packed, int64_t B, int64_t T, const SegmentSize& size);

// The running states of a segment's sequences as rows [lanes * H, ...], taken from `all` [N, H, ...]: a view if possible, otherwise a copy
// that put() writes back.
class LaneStates {
 public:
  LaneStates(const at::Tensor& all, const Segment& segment);
  const at::Tensor& get() const { return lanes_; }
  void put();

  // Saves the states to rows `segment.slot` .. of `rows` [rows, H, ...], and reads them back.
  static void save(const at::Tensor& rows, const Segment& segment, const LaneStates& states);
  static at::Tensor saved(const at::Tensor& rows, const Segment& segment);  // a copy, [lanes * H, ...]

 private:
  at::Tensor all_, index_, lanes_;
};

// Copies a segment's tokens between the caller's layout [tokens, H, X] and the layout [n, g, C, X] of batched matrix products, with n =
// lanes * H and g chunks.
class SegmentCopy {
 public:
  SegmentCopy(const Segment& segment, int64_t heads, at::Device device);

  // [n, g, C, X] of type `dtype`, padded with zeros. May be a view of x [tokens, H, X], so it must not be written to.
  at::Tensor gather(const at::Tensor& x, at::ScalarType dtype) const;
  // The same for x [tokens, H]: [n, g, C].
  at::Tensor gather_gate(const at::Tensor& x, at::ScalarType dtype) const;

  // Writes the real tokens of y [n, g, C, X] to out [tokens, H, X].
  void scatter(const at::Tensor& y, const at::Tensor& out) const;
  void scatter_gate(const at::Tensor& y, const at::Tensor& out) const;

 private:
  at::Tensor view(const at::Tensor& x) const;  // [lanes, tokens, H, X] of a regular segment, without a copy

  int64_t lanes_, heads_, chunks_, chunk_;
  bool regular_;  // lanes have equal lengths and equal distances in memory, so that a strided view suffices
  bool padded_;   // some lane has fewer than chunks * C tokens
  int64_t first_, distance_, tokens_;
  at::Tensor index_;       // irregular: [lanes * g * C] token of each place; 0 for padding
  at::Tensor real_;        // irregular: places with a real token
  at::Tensor real_token_;  // irregular: the tokens of these places
  at::Tensor padding_;     // irregular and padded: mask of the padding places
};

}  // namespace cyfa::ops
