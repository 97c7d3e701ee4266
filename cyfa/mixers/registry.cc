#include "cyfa/mixers/registry.h"

#include <cmath>

#include "cyfa/mixers/blurry_window.h"
#include "cyfa/mixers/bounded_memory.h"
#include "cyfa/mixers/cyclic_flow.h"
#include "cyfa/mixers/delta_net.h"
#include "cyfa/mixers/gated_delta_net.h"
#include "cyfa/mixers/gated_linear_attention.h"
#include "cyfa/mixers/gated_slot_attention.h"
#include "cyfa/mixers/kimi_delta_attention.h"
#include "cyfa/mixers/linear_attention.h"
#include "cyfa/mixers/mamba2.h"
#include "cyfa/mixers/mamba3.h"
#include "cyfa/mixers/raven.h"
#include "cyfa/mixers/retention.h"
#include "cyfa/mixers/softmax_attention.h"

namespace cyfa {

namespace {

// The layouts of flash-linear-attention's models, and where their defaults differ.
BackboneLayout retnet_layout() {
  BackboneLayout layout;
  layout.hidden_ratio = 2;
  return layout;
}

BackboneLayout gated_deltanet_layout() {
  BackboneLayout layout;
  layout.num_hidden_layers = 21;
  return layout;
}

BackboneLayout cyclic_flow_layout() {
  BackboneLayout layout;
  layout.pad_token_id = 2;
  return layout;
}

BackboneLayout transformers_layout(int64_t intermediate_size, int64_t max_position_embeddings) {
  BackboneLayout layout;
  layout.embeddings = "embed_tokens";
  layout.mixer = "self_attn";
  layout.mixer_norm = "input_layernorm";
  layout.mlp_norm = "post_attention_layernorm";
  layout.norm_eps_key = "rms_norm_eps";
  layout.mlp_width = BackboneLayout::Mlp::kGiven;
  layout.zeroes_padding = true;
  layout.hidden_act = "silu";
  layout.hidden_size = 4096;
  layout.num_hidden_layers = 32;
  layout.intermediate_size = intermediate_size;
  layout.max_position_embeddings = max_position_embeddings;
  return layout;
}

BackboneLayout mamba_layout() {
  BackboneLayout layout;
  layout.root = "backbone";
  layout.mixer = "mixer";
  layout.mixer_norm = "norm";
  layout.norm = "norm_f";
  layout.norm_eps = 1e-5;
  layout.mlp_width_key = "mlp_intermediate_size";
  layout.mlp_width = BackboneLayout::Mlp::kOptional;
  layout.trains_padding = true;
  layout.rescales_residual = true;
  layout.hidden_act = "silu";
  layout.num_hidden_layers = 48;
  layout.pad_token_id = 0;
  return layout;
}

constexpr const char* kFla = "flash-linear-attention 0.6.0";
constexpr const char* kTransformers = "transformers";

// Fields: model_type, architecture, layout, read; then the facts: about, recurrence, state, cost, reference, origin.
std::deque<MixerKind>& all_kinds() {
  static std::deque<MixerKind> kinds = {
      {"cyclic_flow_attention",
       "CyclicFlowAttentionForCausalLM",
       cyclic_flow_layout(),
       read_cyclic_flow,
       {"Cyclic Flow Attention (CyFA)",
        "K_t = alpha_t P(delta_t) K_{t-1} + beta_t e_0 k_t^T, V_t alike; o_t = (R V_t)^T softmax(R K_t q_t)", "H M (K + V)",
        "Low, two passes", "the paper, section 3", "Chyxx/CyclicFlowAttention"}},
      {"llama",
       "LlamaForCausalLM",
       transformers_layout(11008, 2048),
       read_llama_attention,
       {"Transformer: softmax attention over all tokens before", "o_t = sum_i softmax_i(q_t k_i) v_i", "2 G D a token (grows)",
        "Quadratic in T", "Vaswani et al. 2017; Touvron et al. 2023", kTransformers}},
      {"mistral",
       "MistralForCausalLM",
       transformers_layout(14336, 131072),
       read_mistral_attention,
       {"SWA: softmax attention over the last m tokens", "K_t = Z K_{t-1} + e_0 k_t^T, V_t alike; o_t = V_t^T softmax(K_t q_t)",
        "m G (K + V)", "m a token", "Beltagy et al. 2020; Jiang et al. 2023", kTransformers}},
      {"linear_attn",
       "LinearAttentionForCausalLM",
       {},
       read_linear_attention,
       {"LA: linear attention", "S_t = S_{t-1} + k_t v_t^T; o_t = S_t^T q_t", "H K V", "Low", "Katharopoulos et al. 2020", kFla}},
      {"retnet",
       "RetNetForCausalLM",
       retnet_layout(),
       read_retention,
       {"RetNet: a fixed decay for each head", "S_t = gamma S_{t-1} + k_t v_t^T; o_t = S_t^T q_t", "H K V", "Low", "Sun et al. 2023",
        kFla}},
      {"gla",
       "GLAForCausalLM",
       {},
       read_gated_linear_attention,
       {"GLA: gates on the rows of the state, or on its columns",
        "S_t = Diag(alpha_t) S_{t-1} + k_t v_t^T, or S_{t-1} Diag(alpha_t) with use_gv; o_t = S_t^T q_t", "H K V", "Mid",
        "Yang et al. 2024", kFla}},
      {"abc",
       "ABCForCausalLM",
       {},
       read_bounded_memory,
       {"ABC: slots that keep weighted means", "K_t = K_{t-1} + phi_t k_t^T over the sum of phi, V_t alike; o_t = V_t^T softmax(K_t q_t)",
        "H M (K + V)", "Mid, two passes", "Peng et al. 2022", kFla}},
      {"gsa",
       "GSAForCausalLM",
       {},
       read_gated_slot_attention,
       {"GSA: gated slots", "K_t = Diag(alpha_t) K_{t-1} + (1 - alpha_t) k_t^T, V_t alike; o_t = V_t^T softmax(K_t q_t)", "H M (K + V)",
        "Mid, two passes", "Zhang et al. 2024", kFla}},
      {"raven",
       "RavenForCausalLM",
       {},
       read_raven,
       {"Raven: gated slots of which each token writes a few", "GSA with alpha_t = 1 but for the topk slots of a router", "H M (K + V)",
        "Mid, two passes", "Afzal et al. 2026", kFla}},
      {"blurry_window_attention",
       "BlurryWindowAttentionForCausalLM",
       cyclic_flow_layout(),
       read_blurry_window,
       {"BLA: slots of a fixed-rate Dirichlet window",
        "K_t = Diag(1 - phi_t) K_{t-1} + phi_t k_t^T, V_t alike, phi_t = P(t / rho) e_0; o_t = V_t^T softmax(K_t q_t)", "H M (K + V)",
        "Mid, two passes", "Laborieux et al. 2026; the paper's appendix", "none published; names as in CyFA's"}},
      {"mamba2",
       "Mamba2ForCausalLM",
       mamba_layout(),
       read_mamba2,
       {"Mamba-2", "S_t = alpha_t S_{t-1} + k_t (dt_t v_t)^T; o_t = S_t^T q_t + D v_t", "H K V", "Low", "Dao and Gu 2024", kFla}},
      {"mamba3",
       "Mamba3ForCausalLM",
       mamba_layout(),
       read_mamba3,
       {"Mamba-3, SISO or MIMO",
        "S_t = alpha_t S_{t-1} + alpha_t (1 - lambda_t) dt_t k_{t-1} v_{t-1}^T + lambda_t dt_t k_t v_t^T, R of each with is_mimo; o_t = "
        "S_t^T q_t + D v_t",
        "H K V", "Low, R times with is_mimo", "Lahoti et al. 2026; state-spaces/mamba", kFla}},
      {"delta_net",
       "DeltaNetForCausalLM",
       {},
       read_delta_net,
       {"DeltaNet: the delta rule", "S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T; o_t = S_t^T q_t", "H K V", "Mid",
        "Schlag et al. 2021; Yang et al. 2024", kFla}},
      {"gated_deltanet",
       "GatedDeltaNetForCausalLM",
       gated_deltanet_layout(),
       read_gated_delta_net,
       {"GDN: the delta rule with a scalar gate", "S_t = alpha_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T; o_t = S_t^T q_t",
        "H K V", "Mid", "Yang et al. 2024", kFla}},
      {"kda",
       "KDAForCausalLM",
       {},
       read_kimi_delta_attention,
       {"KDA: the delta rule with a gate for each key dimension",
        "S_t = (I - beta_t k_t k_t^T) Diag(alpha_t) S_{t-1} + beta_t k_t v_t^T; o_t = S_t^T q_t", "H K V", "High", "Kimi Team 2025", kFla}},
  };
  return kinds;
}

}  // namespace

Init BackboneShape::rescaled(int64_t width) const { return Init::uniform(1 / std::sqrt(static_cast<double>(width * residuals * layers))); }

const std::deque<MixerKind>& mixer_kinds() { return all_kinds(); }

void register_mixer(MixerKind kind) {
  for (const MixerKind& other : all_kinds()) {
    if (other.model_type == kind.model_type) throw std::invalid_argument("a mixer is called " + kind.model_type + " already");
  }
  all_kinds().push_back(std::move(kind));
}

const MixerKind& mixer_kind(const std::string& model_type) {
  std::string known;
  for (const MixerKind& kind : mixer_kinds()) {
    if (kind.model_type == model_type) return kind;
    known += (known.empty() ? "" : ", ") + kind.model_type;
  }
  throw ConfigError("config: model_type is " + shortened(model_type) + ", wanted one of " + known);
}

}  // namespace cyfa
