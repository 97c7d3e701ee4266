// The sm90 backend of cyclic_flow: passes torch tensors to the kernels of cyfa/kernels/cyclic_flow/sm90, on torch's current stream. Forward
// saves its intermediate results for backward (Saved in sm90.h), or backward runs forward again.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward.h"
#include "cyfa/kernels/cyclic_flow/sm90/sm90_forward.h"
#include "cyfa/ops/common/check.h"
#include "cyfa/ops/cyclic_flow/sm90.h"

namespace cyfa::ops::sm90 {
namespace {

static_assert(kTileTokens == cyclic_flow::kTileTokens && kSectionSlots == cyclic_flow::kSectionSlots);

// Contiguous heads, one stride between tokens, rows aligned for 16-byte copies.
bool rows_fit(const at::Tensor& x) {
  const int64_t width = x.size(3);
  return x.stride(3) == 1 && (x.size(2) == 1 || x.stride(2) == width) && (x.size(0) == 1 || x.stride(0) == x.size(1) * x.stride(1)) &&
         x.stride(1) % 8 == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}

at::Tensor with_fitting_rows(const at::Tensor& x) { return rows_fit(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

// The tiles of all sequences, in order, and the index of each sequence's first tile: one tensor on the device.
struct Tiles {
  at::Tensor memory;
  int32_t count = 0, longest = 0;

  Tiles(const std::vector<int64_t>& offsets, at::Device device) {
    std::vector<cyclic_flow::Tile> tiles;
    std::vector<int32_t> firsts = {0};
    for (size_t n = 0; n + 1 < offsets.size(); ++n) {
      for (int64_t t = offsets[n]; t < offsets[n + 1]; t += cyclic_flow::kTileTokens) {
        const int64_t tokens = std::min<int64_t>(cyclic_flow::kTileTokens, offsets[n + 1] - t);
        tiles.push_back({t, static_cast<int32_t>(tokens), static_cast<int32_t>(n)});
      }
      firsts.push_back(static_cast<int32_t>(tiles.size()));
      longest = std::max(longest, firsts[n + 1] - firsts[n]);
    }
    count = static_cast<int32_t>(tiles.size());
    const size_t tile_bytes = tiles.size() * sizeof(cyclic_flow::Tile);
    const at::Tensor host = at::empty({static_cast<int64_t>(tile_bytes + firsts.size() * sizeof(int32_t))}, at::kByte);
    std::memcpy(host.data_ptr(), tiles.data(), tile_bytes);
    std::memcpy(static_cast<char*>(host.data_ptr()) + tile_bytes, firsts.data(), firsts.size() * sizeof(int32_t));
    memory = host.to(device);
  }
  const cyclic_flow::Tile* tile() const { return static_cast<const cyclic_flow::Tile*>(memory.const_data_ptr()); }
  const int32_t* first() const { return reinterpret_cast<const int32_t*>(tile() + count); }
};

// Cached for the first shapes of plain batches, which always have the same tiles: the copy from the host takes longer than the kernels of a
// short sequence.
Tiles tiles_of(const CyclicFlowInputs& in, const CyclicFlowShape& shape) {
  constexpr size_t kKept = 64;
  static std::mutex mutex;
  static auto& kept = *new std::map<std::tuple<int, int64_t, int64_t>, Tiles>;  // never destroyed: the device may be gone at exit
  if (shape.packed) return Tiles(cyclic_flow_offsets(in, shape), in.q.device());
  const std::lock_guard<std::mutex> lock(mutex);
  const auto key = std::make_tuple(static_cast<int>(in.q.get_device()), shape.B, shape.T);
  const auto found = kept.find(key);
  if (found != kept.end()) return found->second;
  const Tiles made(cyclic_flow_offsets(in, shape), in.q.device());
  if (kept.size() >= kKept) return made;
  C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream()));  // other CUDA streams may use it next
  return kept.emplace(key, made).first->second;
}

at::Tensor plain(const at::Tensor& x, at::ScalarType dtype) { return x.detach().to(dtype).contiguous(); }

cyclic_flow::Sm90Kept kept_in(const Saved& saved, bool with_scores) {
  return {saved.tokens.data_ptr(), saved.states.data_ptr(), saved.tables.data_ptr(), with_scores ? saved.scores.data_ptr() : nullptr};
}

// The arguments in the form that the kernels need, with tensors that own converted copies.
struct KernelInputs {
  CyclicFlowShape shape;
  Tiles tiles;
  at::Tensor q, k, v, log_alpha, delta, beta, readout, q_weight, k_weight, state_k, state_v, clock;
  cyclic_flow::Sm90ForwardParams params;

  KernelInputs(const CyclicFlowInputs& in, const CyclicFlowSettings& settings)
      : shape(check_cyclic_flow(in)),
        tiles(tiles_of(in, shape)),
        q(with_fitting_rows(in.q)),
        k(with_fitting_rows(in.k)),
        v(with_fitting_rows(in.v)),
        log_alpha(plain(in.log_alpha, at::kFloat)),
        delta(plain(in.delta, at::kFloat)),
        beta(plain(in.beta, at::kFloat)),
        readout(plain(in.readout, at::kFloat)) {
    cyclic_flow::Sm90ForwardParams& p = params;
    p.T = shape.B * shape.T;
    p.N = static_cast<int32_t>(shape.N);
    p.H = static_cast<int32_t>(shape.H);
    p.K = static_cast<int32_t>(shape.K);
    p.V = static_cast<int32_t>(shape.V);
    p.M = static_cast<int32_t>(shape.M);
    p.tiles = tiles.count;
    p.longest = tiles.longest;
    p.tile = tiles.tile();
    p.first_tile = tiles.first();
    p.q = q.const_data_ptr();
    p.k = k.const_data_ptr();
    p.v = v.const_data_ptr();
    p.q_stride = q.stride(1);
    p.k_stride = k.stride(1);
    p.v_stride = v.stride(1);
    p.log_alpha = log_alpha.const_data_ptr<float>();
    p.delta = delta.const_data_ptr<float>();
    p.beta = beta.const_data_ptr<float>();
    p.readout = readout.const_data_ptr<float>();
    if (in.q_norm_weight) {
      q_weight = plain(*in.q_norm_weight, at::kFloat);
      p.q_norm_weight = q_weight.const_data_ptr<float>();
    }
    if (in.k_norm_weight) {
      k_weight = plain(*in.k_norm_weight, at::kFloat);
      p.k_norm_weight = k_weight.const_data_ptr<float>();
    }
    p.scale = static_cast<float>(settings.scale);
    p.norm_eps = static_cast<float>(settings.norm_eps);
    if (const char* reason = cyclic_flow::sm90_forward_refusal(p)) check::fail(kCyclicFlow, std::string("backend sm90 refuses: ") + reason);
    if (in.initial_state) {
      state_k = plain(in.initial_state->k, at::kFloat);
      state_v = plain(in.initial_state->v, at::kFloat);
      clock = plain(in.initial_state->clock, at::kDouble);
      p.initial_k = state_k.const_data_ptr<float>();
      p.initial_v = state_v.const_data_ptr<float>();
      p.initial_clock = clock.const_data_ptr<double>();
    }
  }
};

// Runs forward. It writes `o`, the final state (k and v only where they have elements) and `saved` (its scores only if `with_scores`).
void run_forward(const KernelInputs& inputs, const Saved& saved, bool with_scores, bool normalise_first, const at::Tensor& o,
                 const CyclicFlowState& final_state) {
  cyclic_flow::Sm90ForwardParams p = inputs.params;
  p.o = o.data_ptr();
  if (final_state.k.numel() > 0) p.final_k = final_state.k.data_ptr<float>();
  if (final_state.v.numel() > 0) p.final_v = final_state.v.data_ptr<float>();
  p.final_clock = final_state.clock.data_ptr<double>();
  p.normalise_first = normalise_first;
  p.kept = kept_in(saved, with_scores);
  const at::Tensor workspace = at::empty({cyclic_flow::sm90_forward_workspace(p)}, o.options().dtype(at::kByte));
  p.workspace = workspace.data_ptr();
  C10_CUDA_CHECK(cyclic_flow::sm90_forward(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

std::string refusal(const CyclicFlowInputs& in) {
  if (!in.q.is_cuda()) return "q is on " + in.q.device().str() + ", the kernels run on CUDA";
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, in.q.get_device()));
  if (major != 9) return "the GPU has compute capability " + std::to_string(major) + ".x, the kernels are for Hopper (9.0)";
  if (in.q.scalar_type() != at::kBFloat16)
    return std::string("q has type ") + c10::toString(in.q.scalar_type()) + ", the kernels take BFloat16";
  if (in.q.size(1) == 0) return "there are no tokens";
  cyclic_flow::Sm90ForwardParams p;
  const int64_t K = in.q.size(3), V = in.v.size(3);
  if (std::min(K, V) < kLeastWidth || std::max(K, V) > kWidth) {
    return "heads are " + std::to_string(K) + " and " + std::to_string(V) + " wide, the kernels take " + std::to_string(kLeastWidth) +
           " to " + std::to_string(kWidth);
  }
  p.K = p.V = static_cast<int32_t>(kWidth);
  p.M = static_cast<int32_t>(in.readout.size(1) + 1);
  if (const char* reason = cyclic_flow::sm90_forward_refusal(p)) return reason;
  const bool keys_fit = K < kWidth || (rows_fit(in.q) && rows_fit(in.k));  // narrower rows are copied where they must be
  if (!keys_fit || (V == kWidth && !rows_fit(in.v))) return "q, k or v is strided or misaligned in a way the kernels do not take";
  return "";
}

CyclicFlowForward forward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings) {
  const c10::cuda::CUDAGuard guard(in.q.device());
  const KernelInputs inputs(in, settings);
  CyclicFlowForward out = empty_cyclic_flow_forward(in, inputs.shape, settings.final_state);
  const bool kept = settings.keep == Keep::kStatesAndScores;
  out.saved = empty_saved(in.q.options(), inputs.shape, kept);
  run_forward(inputs, Saved(kept ? out.saved : empty_saved(in.q.options(), inputs.shape, true)), kept, false, out.o, out.final_state);
  return out;
}

CyclicFlowGradients backward(const CyclicFlowInputs& in, const CyclicFlowSettings& settings, at::TensorList saved,
                             const CyclicFlowOutputGradients& grad) {
  const c10::cuda::CUDAGuard guard(in.q.device());
  const KernelInputs inputs(in, settings);
  const CyclicFlowShape& s = inputs.shape;
  CyclicFlowGradients out = empty_cyclic_flow_gradients(in);
  const auto single = in.q.options().dtype(at::kFloat);
  const at::Tensor grad_o = grad.o.defined() ? plain(grad.o, at::kBFloat16) : at::zeros({s.B, s.T, s.H, s.V}, in.v.options());
  const auto given = [](const at::Tensor& x, at::ScalarType dtype) { return x.defined() ? plain(x, dtype) : x; };
  const at::Tensor grad_k = given(grad.final_state.k, at::kFloat), grad_v = given(grad.final_state.v, at::kFloat);
  const at::Tensor grad_clock = given(grad.final_state.clock, at::kDouble);
  // The kernels write contiguous fp32 gradients: directly to an output of that kind, otherwise to a tensor that is copied to it.
  const auto target = [&](const at::Tensor& x) {
    return x.scalar_type() == at::kFloat && x.is_contiguous() ? x : at::empty(x.sizes(), single);
  };
  const at::Tensor log_alpha = target(out.log_alpha), delta = target(out.delta), beta = target(out.beta);
  const at::Tensor readout = target(out.readout);
  at::Tensor q_weight, k_weight, state_k, state_v, clock;

  cyclic_flow::Sm90BackwardParams p;
  p.in = inputs.params;
  // A gradient of the final state needs rows that were normalised first, which forward does by itself only if there is an initial state.
  p.in.normalise_first = grad_k.defined() || grad_v.defined();
  Saved kept(saved);
  const bool norms = in.q_norm_weight || in.k_norm_weight;
  if (kept.scores.numel() == 0 || (p.in.normalise_first && norms && !in.initial_state)) {
    kept = Saved(empty_saved(in.q.options(), s, true));
    const CyclicFlowState final_state{at::empty({0}, single), at::empty({0}, single), at::empty({s.N, s.H}, single.dtype(at::kDouble))};
    // o is written to out.v, which the gradient of v overwrites later.
    run_forward(inputs, kept, true, p.in.normalise_first, out.v, final_state);
  }
  p.in.kept = kept_in(kept, true);
  p.grad_o = grad_o.const_data_ptr();
  if (grad_k.defined()) p.grad_final_k = grad_k.const_data_ptr<float>();
  if (grad_v.defined()) p.grad_final_v = grad_v.const_data_ptr<float>();
  if (grad_clock.defined()) p.grad_final_clock = grad_clock.const_data_ptr<double>();
  p.d_q = out.q.data_ptr();
  p.d_k = out.k.data_ptr();
  p.d_v = out.v.data_ptr();
  p.d_log_alpha = log_alpha.data_ptr<float>();
  p.d_delta = delta.data_ptr<float>();
  p.d_beta = beta.data_ptr<float>();
  p.d_readout = readout.data_ptr<float>();
  if (in.q_norm_weight) {
    q_weight = target(out.q_norm_weight);
    p.d_q_norm_weight = q_weight.data_ptr<float>();
  }
  if (in.k_norm_weight) {
    k_weight = target(out.k_norm_weight);
    p.d_k_norm_weight = k_weight.data_ptr<float>();
  }
  if (in.initial_state) {
    state_k = target(out.initial_state.k);
    state_v = target(out.initial_state.v);
    clock = at::empty({s.N, s.H}, single.dtype(at::kDouble));
    p.d_initial_k = state_k.data_ptr<float>();
    p.d_initial_v = state_v.data_ptr<float>();
    p.d_initial_clock = clock.data_ptr<double>();
  }
  const at::Tensor workspace = at::empty({cyclic_flow::sm90_backward_workspace(p)}, in.q.options().dtype(at::kByte));
  p.workspace = workspace.data_ptr();
  C10_CUDA_CHECK(cyclic_flow::sm90_backward(p, c10::cuda::getCurrentCUDAStream()));

  const auto finish = [](const at::Tensor& to, const at::Tensor& from) {
    if (from.defined() && !to.is_same(from)) to.copy_(from);
  };
  finish(out.log_alpha, log_alpha);
  finish(out.delta, delta);
  finish(out.beta, beta);
  finish(out.readout, readout);
  finish(out.q_norm_weight, q_weight);
  finish(out.k_norm_weight, k_weight);
  finish(out.initial_state.k, state_k);
  finish(out.initial_state.v, state_v);
  finish(out.initial_state.clock, clock);
  return out;
}

}  // namespace cyfa::ops::sm90
