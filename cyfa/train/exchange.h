// The gradients of all ranks, summed while backward runs, and with a sharded optimizer the parameters that each rank has updated.
//
// Parameters of one type are grouped to buckets, those whose gradients backward completes first in the first bucket. A bucket is an array
// in fp32 that holds the gradients one after another, summed over the micro-batches, with zeros at its end so that every rank has an equal
// part. Its sum over the ranks begins as soon as the last of its gradients is there, always in the order of the buckets, which is therefore
// the same on all ranks. Updated parameters travel in the same arrays, in their own type.
#pragma once

#include <memory>

#include "cyfa/model/causal_lm.h"
#include "cyfa/parallel/group.h"
#include "cyfa/train/optimizer.h"

namespace cyfa {

class GradientExchange {
 public:
  // With `shard`, gradients are summed by reduce-scatter: each rank gets a part of every bucket, and updates the parameters in it alone.
  // Otherwise every rank gets all sums. They are exchanged in `type`, fp32 or bf16. The model must outlive this object, and its parameters
  // must remain the same tensors. A group of one process has no buckets.
  GradientExchange(CausalLM& model, const Group& group, bool shard, at::ScalarType type, int64_t bucket_bytes);
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;
  ~GradientExchange();

  // The parameters that this rank's optimizer updates: its part of each bucket, or all.
  std::vector<ParameterRange> ranges() const;

  // The gradients that backward computes from here on are those of a new step.
  void begin_step();
  // The next backward is the last of the step: buckets begin as their gradients become complete.
  void begin();
  // A gradient that autograd does not accumulate is complete. Called in backward, once for each such parameter.
  void completed(ParameterId id);
  // Begins what backward has not, such as parameters without a gradient, and waits for all sums.
  void finish();
  // After finish(): the summed gradients of ranges(), in order; undefined where a parameter has none.
  std::vector<at::Tensor> gradients() const;

  // With `shard`, after the optimizer's step: begins to send the updated parameters to all ranks, those that the next forward uses first in
  // front; waits for one parameter; waits for all. Otherwise nothing.
  void send_parameters();
  void receive_parameter(ParameterId id);
  void receive_parameters();

  // With `shard`, of values in fp32 of which each rank has those of its ranges(), in order: all of them, one tensor for each parameter.
  // They lie where the next step sums its gradients. Only those of parameters of a narrower type are exchanged; for the others, the
  // parameters themselves. No parameters may be on their way. Waits.
  std::vector<at::Tensor> gather(const std::vector<at::Tensor>& of_ranges);

 private:
  struct Bucket;
  class Hook;
  struct Place {
    size_t bucket;
    int64_t offset;  // in the bucket
  };

  void take(ParameterId id);  // adds the gradient that autograd has computed to the bucket
  void refuse_if_completed(ParameterId id) const;
  void begin_ready(bool all);
  void begin_bucket(Bucket& bucket);
  void receive(Bucket& bucket);

  CausalLM& model_;
  Group group_;
  bool shard_;
  at::ScalarType type_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<Place> places_;  // by ParameterId
  std::vector<bool> completed_, has_gradient_;
  size_t begun_ = 0;  // buckets whose sum is under way
  bool armed_ = false;
};

// A hash of tensors by which ranks compare what should be equal to the bit, such as their parameters. It is computed where the tensors lie,
// from the sums of 4,096 elements' bits at a time, so that only these sums leave a GPU. It cannot tell orders inside such a block.
uint64_t hash_of_sums(const std::vector<at::Tensor>& tensors);

}  // namespace cyfa
