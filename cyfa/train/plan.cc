#include "cyfa/train/plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cyfa/mixers/cyclic_flow.h"

namespace cyfa {
namespace {

constexpr double kGiB = 1 << 30;
constexpr double kReserved = 2 * kGiB;           // CUDA, NCCL's buffers and the allocator's gaps
constexpr double kFilled = 0.97;                 // of the memory: predictions have been up to 2.1% too small (docs/scaling.md)
constexpr double kSavedChunk = 128;              // tokens between the states that the operator's forward saves
constexpr double kLogits = double{1 << 26} * 8;  // bytes of logits and their gradients at a time (cyfa/ops/dense/cross_entropy.cc)

// Bytes a token that a layer keeps for backward, in bf16 but for what the operator keeps in fp32.
double layer_activations(const CausalLM& model, const Block& block) {
  const double D = static_cast<double>(model.config().backbone.hidden_size), F = static_cast<double>(model.config().intermediate_size);
  if (const CyclicFlowSpec* spec = cyclic_flow_spec(block.mixer())) {
    const double H = static_cast<double>(spec->config.shape.heads), K = static_cast<double>(spec->config.shape.K),
                 V = static_cast<double>(spec->config.shape.V), M = static_cast<double>(spec->config.slots);
    // Of the operator: scores in fp16, both states once a tile in bf16, five tables in fp32 (cyfa/ops/cyclic_flow/sm90_shapes.cc).
    return 2 * (4 * D + 6 * H * K + 3 * H * V + V + 3 * F) + 2 * H * M + 4 * H * M * std::max(K, V) / kSavedChunk + 20 * H;
  }
  double outputs = 0;  // of the mixer's products; each is kept before and after what follows it
  for (const ParameterSpec& p : block.table().specs()) {
    if (p.role == Role::kMatrix) outputs += static_cast<double>(p.shape[0]);
  }
  return 2 * (4 * D + 2 * (outputs - (F > 0 ? 2 * F + D : 0)) + 3 * F);
}

double ring(double ranks) { return (ranks - 1) / ranks; }

}  // namespace

const std::vector<Machine>& machines() {
  // Memory as the driver reports it. NVLink 4: 450 GB/s one way, of which collectives reach 0.8. Network: 400 Gb/s a GPU, 0.9 of it.
  static const std::vector<Machine> all = {{"h100", 79.6 * kGiB, 989e12, 3.35e12, 8, 360e9, 45e9},
                                           {"h200", 139.8 * kGiB, 989e12, 4.8e12, 8, 360e9, 45e9}};
  return all;
}

const Machine& machine_of(const std::string& name) {
  std::string names;
  for (const Machine& machine : machines()) {
    if (machine.name == name) return machine;
    names += (names.empty() ? "" : ", ") + machine.name;
  }
  throw std::invalid_argument("plan: there is no machine " + name + "; wanted one of " + names);
}

ModelCosts ModelCosts::of(const CausalLM& model) {
  ModelCosts costs;
  costs.parameters = static_cast<double>(model.table().numel());
  costs.flops_per_token = model.forward_flops_per_token();
  for (const CausalLM::Layer& layer : model.layers()) costs.recurrence_flops += layer.block->mixer().flops_per_token();
  costs.layers = static_cast<int64_t>(model.layers().size());
  bool all_cut = true;
  for (size_t i = 0; i < model.layers().size(); ++i) {
    const Block& block = *model.layers()[i].block;
    const double layer = layer_activations(model, block);
    costs.activations += layer;
    costs.recomputed_activations = std::max(costs.recomputed_activations, layer);
    costs.largest_layer = std::max(costs.largest_layer, static_cast<double>(block.table().numel()));
    all_cut = all_cut && cyclic_flow_spec(block.mixer()) != nullptr;
    costs.state_bytes = std::max(costs.state_bytes, 4.0 * static_cast<double>(model.memory_scalars(i)));
  }
  costs.activation_gradients = 4.0 * static_cast<double>(model.config().intermediate_size);
  costs.recomputed_activations += 2.0 * static_cast<double>(model.config().backbone.hidden_size * costs.layers);
  if (!all_cut) costs.state_bytes = 0;
  return costs;
}

double computing_seconds(const ModelCosts& m, const Machine& machine, double tokens, double parts, bool recompute, double updated) {
  const MeasuredRates rates;
  const double slower = rates.bandwidth / machine.bandwidth;  // of what is bound by memory
  const double token = 3 * (m.flops_per_token - m.recurrence_flops) / rates.products + 3 * m.recurrence_flops / rates.recurrences +
                       m.activations / rates.rows * slower;
  const double passes = recompute ? 4.0 / 3 : 1;  // forward is a third
  return passes * (tokens * token + parts * static_cast<double>(m.layers) * rates.layer) + updated / rates.updates * slower;
}

double training_bytes(const ModelCosts& m, double tokens, bool recompute) {
  return 18 * m.parameters + tokens * (m.activation_gradients + (recompute ? m.recomputed_activations : m.activations)) + kLogits;
}

namespace {

class Planner {
 public:
  Planner(const ModelCosts& model, const Machine& machine, const PlanRequest& request) : m_(model), machine_(machine), r_(request) {}

  Layout layout(const std::string& way, int64_t context_ranks, bool recompute) const {
    Layout l;
    l.way = way;
    l.context_ranks = context_ranks;
    l.recompute = recompute;
    l.today = way == "DP" || way == "ZeRO-1";
    const auto N = static_cast<double>(r_.gpus), R = static_cast<double>(context_ranks), P = m_.parameters;
    const double shards = shards_of(l);
    // The program's training engine: gradients in its own array and, with other ranks, in buckets. DP has parameters in fp32 and their bf16
    // copies; ZeRO-1 has them in bf16 alone, and of its own part the masters, the moments and the gradients in fp32.
    l.parameters = way == "DP" ? 6 * P : way == "ZeRO-1" ? 2 * P : 6 * P / shards + 2 * 2 * m_.largest_layer;
    l.gradients = l.today ? (N > 1 ? 8 : 4) * P : 4 * P / shards;
    l.optimizer = way == "DP" ? 8 * P : way == "ZeRO-1" ? 16 * P / N : 8 * P / shards;
    const double groups = N / R;                                                     // that read sequences of their own
    const double own = r_.step_tokens / (groups * static_cast<double>(r_.context));  // sequences of a group in a step
    const double token_bytes = m_.activation_gradients + (recompute ? m_.recomputed_activations : m_.activations);
    const double free = kFilled * machine_.memory - kReserved - kLogits - l.parameters - l.gradients - l.optimizer;
    const double stretch = static_cast<double>(r_.context) / R;
    if (own < 1) {
      l.refusal = "a step has fewer sequences than there are readers";
    } else if (context_ranks > 1 && m_.state_bytes == 0) {
      l.refusal = "context parallel has no exchange for these mixers";
    } else if (free < token_bytes * stretch) {
      l.refusal = "one sequence a micro-batch does not fit";
    }
    if (!l.refusal.empty()) {
      l.activations = token_bytes * stretch + kLogits;
      return l;
    }
    const double most = std::min(std::floor(own), std::max(1.0, std::floor(free / (token_bytes * stretch))));
    l.parts = static_cast<int64_t>(std::ceil(own / most));
    if (own == std::floor(own)) {  // all parts are equal
      while (static_cast<int64_t>(own) % l.parts != 0) ++l.parts;
    }
    l.sequences = static_cast<int64_t>(std::ceil(own / static_cast<double>(l.parts)));
    l.activations = token_bytes * stretch * static_cast<double>(l.sequences) + kLogits;
    time(l);
    l.tokens_per_s = r_.step_tokens / l.step();
    l.gpu_hours = r_.tokens / l.tokens_per_s * N / 3600;
    return l;
  }

 private:
  // Bytes over N ranks as rings: in each node, then between nodes, where every GPU carries its share.
  double transfer(double bytes, double ranks) const {
    const double inside = std::min(ranks, static_cast<double>(machine_.gpus_per_node)), nodes = ranks / inside;
    return bytes * ring(inside) / machine_.node_bandwidth + (nodes > 1 ? bytes / inside * ring(nodes) / machine_.network_bandwidth : 0);
  }

  // GPUs over which the parameters are divided; with ZeRO-1, which divides the optimizer's state alone, 1.
  double shards_of(const Layout& l) const {
    const auto N = static_cast<double>(r_.gpus);
    return l.way == "ZeRO-3" ? N : l.way == "HSDP" ? std::min(N, static_cast<double>(machine_.gpus_per_node)) : 1;
  }

  void time(Layout& l) const {
    const double shards = shards_of(l);
    const auto N = static_cast<double>(r_.gpus), R = static_cast<double>(l.context_ranks), k = static_cast<double>(l.parts);
    const double P = m_.parameters, layers = static_cast<double>(m_.layers);
    l.computing = r_.share > 0
                      ? (l.recompute ? 4 : 3) * m_.flops_per_token * r_.step_tokens / N / (r_.share * machine_.peak)
                      : computing_seconds(m_, machine_, r_.step_tokens / N, k, l.recompute, l.way == "ZeRO-1" ? P / N : P / shards);
    l.computing *= r_.correction;
    const double calls = machine_.latency * layers;
    // Sums are hidden under backward of the last part, and parameters under forward of the next step's first; at least a twentieth is not.
    const double forward = l.recompute ? 0.25 : 1.0 / 3;  // of a part's time
    const auto exposed = [&](double seconds, double share) { return std::max(0.05 * seconds, seconds - share * l.computing / k); };
    if (l.way == "DP" || l.way == "ZeRO-1") {
      const double sums = N > 1 ? (l.way == "DP" ? 2 : 1) * transfer(4 * P, N) + calls : 0;
      const double values = N > 1 && l.way == "ZeRO-1" ? transfer(2 * P, N) + calls : 0;
      l.exchanging = sums + values;
      l.exposed = exposed(sums, 1 - forward) + exposed(values, forward);
    } else {
      const double gathers = k * (2 * transfer(2 * P, shards) + transfer(4 * P, shards) + 3 * calls);
      const double between = N > shards ? 2 * 4 * P / shards * ring(N / shards) / machine_.network_bandwidth + calls : 0;
      l.exchanging = gathers + between;
      l.exposed = std::max(0.05 * l.exchanging, l.exchanging - l.computing);
    }
    if (l.context_ranks == 1) return;
    // Per layer and part, forward, again when it is recomputed, and backward: the rounds of a scan, each of which shifts the map of a
    // stretch, and the rows of three convolutions to the next rank; none of it is hidden.
    const double bandwidth = R <= static_cast<double>(machine_.gpus_per_node) ? machine_.node_bandwidth : machine_.network_bandwidth;
    const double rounds = 1 + (R > 2 ? std::ceil(std::log2(R - 1)) : 0);
    const double all =
        k * layers * (l.recompute ? 3 : 2) * (rounds * (m_.state_bytes / bandwidth + machine_.latency) + 3 * machine_.latency);
    l.exchanging += all;
    l.exposed += all;
  }

  const ModelCosts& m_;
  const Machine& machine_;
  const PlanRequest& r_;
};

}  // namespace

std::vector<Layout> plan(const ModelCosts& model, const Machine& machine, const PlanRequest& request) {
  const auto want = [](bool good, const std::string& what) {
    if (!good) throw std::invalid_argument("plan: " + what);
  };
  want(request.gpus >= 1 && request.gpus <= 1 << 20, "gpus is " + std::to_string(request.gpus) + ", wanted 1 to 1048576");
  want(request.gpus <= machine.gpus_per_node || request.gpus % machine.gpus_per_node == 0,
       "gpus is " + std::to_string(request.gpus) + ", wanted whole nodes of " + std::to_string(machine.gpus_per_node));
  want(request.context >= 1, "context is " + std::to_string(request.context) + ", wanted at least 1");
  want(request.step_tokens >= static_cast<double>(request.context),
       "a step has fewer tokens than a sequence; wanted more with --batch-tokens");
  want(request.tokens > 0, "tokens is not above 0");
  want(request.share >= 0 && request.share <= 1, "mfu is " + std::to_string(request.share) + ", wanted above 0 and at most 1");
  want(request.correction > 0, "the correction is not above 0");
  const Planner planner(model, machine, request);
  std::vector<Layout> all;
  for (const char* way : {"DP", "ZeRO-1", "ZeRO-3", "HSDP"}) {
    if (std::string(way) == "HSDP" && request.gpus <= machine.gpus_per_node) continue;  // the same as ZeRO-3
    for (int64_t ranks = 1; ranks <= request.gpus; ranks *= 2) {
      if (request.gpus % ranks != 0 || ranks > request.context) continue;
      const Layout kept = planner.layout(way, ranks, false), recomputed = planner.layout(way, ranks, true);
      const bool better = recomputed.refusal.empty() && (!kept.refusal.empty() || recomputed.tokens_per_s > kept.tokens_per_s);
      all.push_back(better ? recomputed : kept);
      if (request.gpus == 1) break;
    }
    if (request.gpus == 1) break;
  }
  // Those of FSDP2 come last: they are predicted at rates that its modules, which are not fused, do not reach.
  std::stable_sort(all.begin(), all.end(), [](const Layout& a, const Layout& b) {
    const bool a_runs = a.refusal.empty(), b_runs = b.refusal.empty();
    if (a_runs != b_runs) return a_runs;
    return a.today != b.today ? a.today : a.tokens_per_s > b.tokens_per_s;
  });
  return all;
}

}  // namespace cyfa
