// Predicts memory, time and cost of a training run on many GPUs, by the analytic model of docs/scaling.md. Used by `cyfa plan`. Nothing is
// measured here: the speed of a GPU is a number that `cyfa bench train` has measured.
#pragma once

#include <string>
#include <vector>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

// A cluster of equal nodes.
struct Machine {
  std::string name;
  double memory = 0;         // bytes of a GPU that a program can use
  double peak = 0;           // dense bf16 FLOP/s of a GPU
  int64_t gpus_per_node = 8;
  double node_bandwidth = 0;     // bytes/s that a GPU sends inside its node
  double network_bandwidth = 0;  // bytes/s that a GPU sends to other nodes
  double latency = 20e-6;        // seconds to begin a collective
};
const std::vector<Machine>& machines();
const Machine& machine_of(const std::string& name);  // throws std::invalid_argument that lists the names

// The share of the peak that training reaches on one H200: 205,702 tokens/s of cyfa-400m in bf16, B32 T2048
// (bench/results/2026-11-17-H200.json, `cyfa bench train`), by 3 times the forward's FLOPs.
inline constexpr double kMeasuredShare = 0.47;

// What the model's parts cost.
struct ModelCosts {
  double parameters = 0;
  double flops_per_token = 0;       // forward
  double activations = 0;           // bytes a token that backward needs
  double recomputed_activations = 0;  // the same with activation checkpointing
  double largest_layer = 0;         // parameters
  int64_t layers = 0;
  double state_bytes = 0;           // of the summary that context parallel exchanges, a layer; 0 if it has none
  static ModelCosts of(const CausalLM& model);
};

struct PlanRequest {
  int64_t gpus = 8;
  int64_t context = 2048;        // tokens per sequence
  double step_tokens = 524288;   // tokens per optimizer step
  double tokens = 15e9;          // of the whole run
  double share = kMeasuredShare;
};

// A way to lay a run out on the GPUs, and what it is predicted to need.
struct Layout {
  std::string way;            // "DP", "ZeRO-1", "ZeRO-3", "HSDP"
  int64_t context_ranks = 1;  // ranks over which a sequence is cut
  bool recompute = false;
  int64_t sequences = 1;      // of a micro-batch on each group of context_ranks
  int64_t parts = 1;          // micro-batches a step
  // Bytes on each GPU.
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0;
  double memory() const { return parameters + gradients + optimizer + activations; }
  // Seconds of a step.
  double computing = 0, exchanging = 0, exposed = 0;
  double step() const { return computing + exposed; }
  double tokens_per_s = 0, gpu_hours = 0;
  std::string refusal;  // why it does not run; else empty
  bool today = true;    // `cyfa train` runs it; ZeRO-3 and HSDP are FSDP2 on the Python modules
};

// Every layout, those that run first, by tokens/s. Throws std::invalid_argument for a request out of range.
std::vector<Layout> plan(const ModelCosts& model, const Machine& machine, const PlanRequest& request);

}  // namespace cyfa
