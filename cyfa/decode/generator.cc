#include "cyfa/decode/generator.h"

#include <algorithm>
#include <chrono>

namespace cyfa {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A sequence that is being decoded.
struct Live {
  size_t prompt;
  std::vector<int64_t> history;  // snapshot, prompt and completion tokens
  Sampler sampler;
  TextStream stream;
};

std::span<const float> row_of(const at::Tensor& logits, int64_t row) {
  return {logits.const_data_ptr<float>() + row * logits.size(1), static_cast<size_t>(logits.size(1))};
}

}  // namespace

const char* reason_name(Completion::Reason reason) {
  switch (reason) {
    case Completion::Reason::kLength: return "length";
    case Completion::Reason::kEndOfText: return "end";
    case Completion::Reason::kStop: return "stop";
  }
  return "unknown";
}

Generator::Generator(StepEngine& engine, const Tokenizer& tokenizer) : engine_(engine), model_(engine.model()), tokenizer_(tokenizer) {}

Snapshot Generator::read(const Prompt& prompt, const GenerateOptions& options, size_t index) {
  const at::NoGradGuard no_grad;
  Snapshot now;
  if (prompt.snapshot) {
    now.ids = prompt.snapshot->ids;
    now.state = prompt.snapshot->state.clone();
    now.logits = prompt.snapshot->logits;
  } else {
    now.state = model_.initial_state(1);
  }
  if (prompt.ids.empty() && now.ids.empty()) {
    throw std::invalid_argument("the prompt has no tokens, and the model's config names no token that begins a text");
  }
  const auto all = static_cast<int64_t>(prompt.ids.size());
  for (int64_t begin = 0; begin < all; begin += options.prefill_chunk) {
    const int64_t count = std::min(options.prefill_chunk, all - begin);
    const at::Tensor ids = at::tensor(at::ArrayRef<int64_t>(prompt.ids.data() + begin, static_cast<size_t>(count)), at::kLong).unsqueeze(0);
    LmOutput out = model_.forward(engine_.weights(), ids, std::nullopt, &now.state);
    now.state = std::move(out.final_state);
    if (begin + count == all) now.logits = model_.head_step(engine_.weights(), out.hidden.select(1, count - 1)).squeeze(0).to(at::kCPU);
    if (on_prefill) on_prefill(index, begin + count, all);
  }
  now.ids.insert(now.ids.end(), prompt.ids.begin(), prompt.ids.end());
  return now;
}

std::vector<Completion> Generator::run(const std::vector<Prompt>& prompts, const GenerateOptions& options, bool keep_snapshots) {
  const at::NoGradGuard no_grad;
  options.sampling.check();
  if (options.max_tokens < 0 || options.prefill_chunk < 1)
    throw std::invalid_argument("max_tokens must be at least 0, prefill_chunk at least 1");
  times_ = {};
  std::vector<Completion> done(prompts.size());
  std::vector<Live> live;
  std::vector<ModelState> states;
  std::vector<at::Tensor> first_logits;
  Clock::time_point start = Clock::now();
  for (size_t i = 0; i < prompts.size(); ++i) {
    Snapshot read_now = read(prompts[i], options, i);
    done[i].prompt_tokens = static_cast<int64_t>(prompts[i].ids.size());
    done[i].cached_tokens = static_cast<int64_t>(read_now.ids.size()) - done[i].prompt_tokens;
    times_.prefill_tokens += done[i].prompt_tokens;
    live.push_back({i, std::move(read_now.ids), Sampler(options.sampling), TextStream(options.stop)});
    states.push_back(std::move(read_now.state));
    first_logits.push_back(read_now.logits);
  }
  times_.prefill_seconds = seconds_since(start);
  if (live.empty()) return done;
  ModelState state = ModelState::concatenate(states);
  states.clear();
  if (options.narrow_state) model_.set_state_type(state, at::kBFloat16);
  at::Tensor logits = at::stack(first_logits);
  start = Clock::now();

  // Finishes the rows in `ends`, taking their snapshots if requested, and compacts the batch to the others.
  const auto keep = [&](const std::vector<bool>& ends) {
    std::vector<int64_t> rows;
    std::vector<Live> rest;
    for (size_t r = 0; r < live.size(); ++r) {
      if (!ends[r]) {
        rows.push_back(static_cast<int64_t>(r));
        rest.push_back(std::move(live[r]));
        continue;
      }
      Completion& c = done[live[r].prompt];
      const std::string left = live[r].stream.finish();
      if (on_text && !left.empty()) on_text(live[r].prompt, left);
      c.text = live[r].stream.text();
      const auto row = static_cast<int64_t>(r);
      if (keep_snapshots) {
        c.snapshot = {live[r].history, state.select({row}), logits[row].clone()};
        model_.set_state_type(c.snapshot.state, at::kFloat);
      }
    }
    if (rest.size() == live.size()) {
      live = std::move(rest);
      return;
    }
    live = std::move(rest);
    if (!live.empty()) {
      state = state.select(rows);
      logits = logits.index_select(0, at::tensor(rows, at::kLong));
    }
  };

  while (!live.empty()) {
    // Decide which rows end here, and sample the next token of the others.
    std::vector<bool> ends(live.size(), false);
    std::vector<int64_t> next(live.size(), 0);
    for (size_t r = 0; r < live.size(); ++r) {
      Live& l = live[r];
      Completion& c = done[l.prompt];
      if (l.stream.stopped()) {
        c.reason = Completion::Reason::kStop;
        ends[r] = true;
      } else if (static_cast<int64_t>(c.ids.size()) >= options.max_tokens) {
        c.reason = Completion::Reason::kLength;
        ends[r] = true;
      } else {
        next[r] = l.sampler.next(row_of(logits, static_cast<int64_t>(r)), l.history);
        const std::vector<int64_t>& eos = model_.config().eos;
        if (!options.ignore_eos && std::find(eos.begin(), eos.end(), next[r]) != eos.end()) {
          c.reason = Completion::Reason::kEndOfText;
          ends[r] = true;
        }
      }
    }
    std::vector<int64_t> tokens;
    for (size_t r = 0; r < live.size(); ++r) {
      if (!ends[r]) tokens.push_back(next[r]);
    }
    keep(ends);
    if (live.empty()) break;
    bool last = !keep_snapshots;  // the step after the last token is needed only for a snapshot
    for (size_t r = 0; r < live.size(); ++r) {
      Live& l = live[r];
      done[l.prompt].ids.push_back(tokens[r]);
      l.history.push_back(tokens[r]);
      const std::string text = l.stream.add(tokenizer_.piece(tokens[r]));
      if (on_text && !text.empty()) on_text(l.prompt, text);
      last = last && (l.stream.stopped() || static_cast<int64_t>(done[l.prompt].ids.size()) >= options.max_tokens);
    }
    times_.decode_tokens += static_cast<int64_t>(live.size());
    if (!last) logits = engine_.step(at::tensor(tokens, at::kLong), state).to(at::kCPU);
    if (on_step) on_step();
  }
  times_.decode_seconds = seconds_since(start);
  return done;
}

}  // namespace cyfa
