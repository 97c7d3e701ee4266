// Predicts memory, time and cost of a training run on many GPUs, by the analytic model of docs/scaling.md. Used by `cyfa plan`. Nothing is
// measured here: the rates of a GPU have been measured by `cyfa bench train`.
#pragma once

#include <string>
#include <vector>

#include "cyfa/model/causal_lm.h"

namespace cyfa {

// A cluster of equal nodes.
struct Machine {
  std::string name;
  double memory = 0;     // bytes of a GPU that a program can use
  double peak = 0;       // dense bf16 FLOP/s of a GPU
  double bandwidth = 0;  // bytes/s of a GPU's memory
  int64_t gpus_per_node = 8;
  double node_bandwidth = 0;     // bytes/s that a GPU sends inside its node
  double network_bandwidth = 0;  // bytes/s that a GPU sends to other nodes
  double latency = 20e-6;        // seconds to begin a collective
};
const std::vector<Machine>& machines();
const Machine& machine_of(const std::string& name);  // throws std::invalid_argument that lists the names

// At what rates one H200 trains, on the sm90 engine: the parts of a step of cyfa-400m, B32 T2048 in four micro-batches, by
// `cyfa bench train --kernels` (docs/notes/2026-11-16-training-400m.md). What is bound by memory is scaled by a machine's bandwidth.
struct MeasuredRates {
  double products = 682e12;     // FLOP/s of matrix products: 204 ms
  double recurrences = 175e12;  // FLOP/s of the operator: 46 ms
  // Bytes/s of kept activations, by the kernels that read and write them: norms, SwiGLU, convolutions, gates, loss: 62 ms.
  double rows = 1.25e12;
  double updates = 78e9;      // parameters/s of AdamW: 5 ms
  double layer = 90e-6;       // seconds between the kernels of a layer and micro-batch: 9 ms in all
  double bandwidth = 4.8e12;  // bytes/s of the memory behind `rows` and `updates`
};

// What the model's parts cost.
struct ModelCosts {
  double parameters = 0;
  double flops_per_token = 0;         // forward
  double recurrence_flops = 0;        // of these, those of the recurrences
  double activations = 0;             // bytes a token that backward needs
  double recomputed_activations = 0;  // the same with activation checkpointing
  double activation_gradients = 0;    // bytes a token at the peak, of one layer's gate and up projections
  double largest_layer = 0;           // parameters
  int64_t layers = 0;
  double state_bytes = 0;  // of the summary that context parallel exchanges, a layer; 0 if it has none
  static ModelCosts of(const CausalLM& model);
};

struct PlanRequest {
  int64_t gpus = 8;
  int64_t context = 2048;       // tokens per sequence
  double step_tokens = 524288;  // tokens per optimizer step
  double tokens = 15e9;         // of the whole run
  double share = 0;             // of the peak that a GPU reaches by itself; 0: by MeasuredRates
  double correction = 1;        // by which the predicted time of computing is multiplied, for a GPU or model that has been measured
};

// A way to lay a run out on the GPUs, and what it is predicted to need.
struct Layout {
  std::string way;            // "DP", "ZeRO-1", "ZeRO-3", "HSDP"
  int64_t context_ranks = 1;  // ranks over which a sequence is cut
  bool recompute = false;
  int64_t sequences = 1;  // of a micro-batch on each group of context_ranks
  int64_t parts = 1;      // micro-batches a step
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

// Seconds of computing on one GPU: forward, backward and the update, for `tokens` of its own in so many micro-batches.
double computing_seconds(const ModelCosts& model, const Machine& machine, double tokens, double parts, bool recompute,
                         double updated_parameters);
// Bytes of training on one GPU alone, with so many tokens in a micro-batch.
double training_bytes(const ModelCosts& model, double tokens, bool recompute);

// Every layout, those that run first, of these the ones that `cyfa train` runs, then by tokens/s. Throws std::invalid_argument for a
// request out of range.
std::vector<Layout> plan(const ModelCosts& model, const Machine& machine, const PlanRequest& request);

}  // namespace cyfa
