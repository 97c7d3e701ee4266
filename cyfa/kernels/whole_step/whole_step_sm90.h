// A whole decode step of a CyFA model for one sequence as one launch on Hopper: embedding, all layers, head. Called by
// cyfa/engine/sm90/whole_step.cc. Writes the states, the logits and its scratch memory. No torch, no allocation.
//
// The launch is cooperative, one thread block per multiprocessor, and blocks wait for each other's results in global memory. A wait that
// takes more than about two seconds is given up: the block reports where in `error`, computes on with whatever it has, and the logits are
// NaN. So the kernel always ends.
#pragma once

#include <cuda_runtime_api.h>

#include "cyfa/kernels/whole_step/whole_step_plan.h"

namespace cyfa::whole_step {

constexpr int kMaxLayers = 64;

// Weights and states of a layer: contiguous device arrays, matrices in bf16 and everything else in fp32 unless stated otherwise. Names and
// shapes as in cyclic_flow::StepMixer and StepCudaParams.
struct Layer {
  const void* projection = nullptr;  // [projections, D], rows in the order of ProjectionLayout
  const void* gate_second = nullptr;
  const void* gate_bias = nullptr;    // bf16
  const void* o_proj = nullptr;       // [D, H V]
  const void* gate_and_up = nullptr;  // [2 F, D]
  const void* down = nullptr;         // [D, F]
  const float *readout_table = nullptr, *mixer_norm = nullptr, *mlp_norm = nullptr, *o_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;  // null: q and k are not normalised
  const float *conv[3] = {}, *conv_bias[3] = {};
  const float *dt_bias = nullptr, *A_log = nullptr, *b_bias = nullptr, *d_bias = nullptr;
  float *state_k = nullptr, *state_v = nullptr, *past[3] = {};
  double* clock = nullptr;
};

constexpr int kMarks = 25;  // clock readings per layer, see whole_step_marks

struct Params {
  Sizes n;
  float eps = 0, qk_eps = 0, o_eps = 0;
  float scale = 1;                   // of q
  const void* embeddings = nullptr;  // bf16 [vocab, D]
  const int64_t* id = nullptr;
  const float* final_norm = nullptr;
  const void* head = nullptr;  // [vocab, D]
  float* logits = nullptr;
  uint64_t* words = nullptr;              // [words_of(n).total()], any contents
  unsigned long long* tickets = nullptr;  // zero at first; never reset: counts the blocks of all launches, from which epochs follow
  int* error = nullptr;                   // in pinned host memory; 0, or a code for whole_step_error
  long long* marks = nullptr;             // null, or [blocks, layers + 1, kMarks]
  Layer layer[kMaxLayers] = {};
};

// Fills in n.blocks and n.share for the current device, and says why there is no kernel for these sizes; null if there is one.
const char* whole_step_refusal(Sizes* n);

// Enqueues the step. Two launches must not run at the same time with the same words and tickets.
cudaError_t whole_step(const Params& p, cudaStream_t stream);

// What a nonzero error means: what was awaited, with layer and block.
struct Error {
  const char* awaited = nullptr;
  int layer = 0, block = 0;
};
Error whole_step_error(int code);

// The names of the marks, each the time that ended there: kMarks entries, null where there is none.
const char* const* whole_step_marks();

}  // namespace cyfa::whole_step
