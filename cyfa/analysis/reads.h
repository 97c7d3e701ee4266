// How old the writes are that heads read, and how evenly they fill their slots.
#pragma once

#include "cyfa/analysis/clock.h"
#include "cyfa/ops/cyclic_flow/reads.h"

namespace cyfa::analysis {

// Calls `see` with the reads of each layer with a clock over ids [B, T] (cyfa/ops/cyclic_flow/reads.h), in order. Memory grows with T^2.
void walk_reads(const CausalLM& model, const Weights& w, const at::Tensor& ids,
                const std::function<void(const ClockLayer&, const ops::CyclicFlowReads&)>& see);

// The age of what one head reads. A read o_t is a weighted sum of written values; each token's weights count by their size, relative to
// their sum.
struct ReadAges {
  Head head;
  std::vector<double> by_distance;  // [T]: share of the weight on writes of so many tokens before; they sum to 1
  double tokens_mean = 0;           // mean age in tokens
  int64_t tokens_p50 = 0, tokens_p90 = 0;
  double clock_mean = 0;  // mean age in clock units (slots)
  double wrapped = 0;     // share of the weight on writes older than m clock units, which share slots with younger ones
};

// Over ids [N, T], a sequence at a time.
std::vector<ReadAges> read_ages(const CausalLM& model, const Weights& w, const at::Tensor& ids, const Progress& progress = {});

// How one head fills its slots, by the energy (squared norm) of their values, mean over sequences.
struct SlotUse {
  Head head;
  std::vector<double> by_slot;  // [m]: share of the energy after the last token, newest slot first
  std::vector<double> slots;    // after each part of the sequence: slots in use, (sum e)^2 / sum e^2, from 1 to m
};

// Over ids [N, T], cut into `parts` equal parts (T must be a multiple of it), after each of which the slots are looked at.
std::vector<SlotUse> slot_use(const CausalLM& model, const Weights& w, const at::Tensor& ids, int64_t parts, const Progress& progress = {});

}  // namespace cyfa::analysis
