#include "cyfa/decode/generator.h"

#include <algorithm>
#include <chrono>
#include <deque>

#include "cyfa/decode/batch_sampler.h"

namespace cyfa {
namespace {

using Clock = std::chrono::steady_clock;
// Tokens per forward of a long prompt: more keep a GPU busy, fewer stay in the caches of a CPU.
constexpr int64_t kChunkOnGpu = 8192, kChunkOnCpu = 2048;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Writes the state of one sequence to a row of a batch's. Tensors that grow with the sequence are padded with zeros to the longer one.
void put(ModelState& batch, int64_t row, const ModelState& one) {
  for (size_t layer = 0; layer < batch.layers.size(); ++layer) {
    for (size_t i = 0; i < batch.layers[layer].size(); ++i) {
      at::Tensor& to = batch.layers[layer][i];
      const at::Tensor from = one.layers[layer][i][0];
      if (from.dim() == 0 || from.size(0) == to.size(1)) {
        to[row].copy_(from);
        continue;
      }
      if (from.size(0) > to.size(1)) {
        std::vector<int64_t> missing = to.sizes().vec();
        missing[1] = from.size(0) - to.size(1);
        to = at::cat({to, at::zeros(missing, to.options())}, 1);
      }
      to[row].zero_().narrow(0, 0, from.size(0)).copy_(from);
    }
  }
}

}  // namespace

const char* reason_name(Completion::Reason reason) {
  switch (reason) {
    case Completion::Reason::kLength: return "length";
    case Completion::Reason::kEndOfText: return "end";
    case Completion::Reason::kStop: return "stop";
    case Completion::Reason::kInterrupted: return "interrupted";
  }
  return "unknown";
}

Generator::Generator(StepEngine& engine, const Tokenizer& tokenizer) : engine_(engine), model_(engine.model()), tokenizer_(tokenizer) {}

// One call of Generator::run(). The batch has a fixed number of rows, each with a sequence or free. Every sequence has a last token that
// has been drawn, but not yet stepped. step() steps these tokens and draws the next ones, collect() reads them. A row that has ended is
// filled with the next prompt, or dropped from the batch if there is none.
class GenerationRun {
 public:
  GenerationRun(Generator& generator, const std::vector<Prompt>& prompts, const GenerateOptions& options, bool keep_snapshots)
      : g_(generator), model_(generator.model_), prompts_(prompts), options_(options), keep_(keep_snapshots), done_(prompts.size()) {
    const auto all = static_cast<int64_t>(prompts.size());
    resize(options.batch == 0 ? all : std::min(options.batch, all));
    g_.times_.batch = static_cast<int64_t>(rows_.size());
    state_ = model_.initial_state(g_.times_.batch);
    if (options.narrow_state) model_.set_state_type(state_, at::kBFloat16);
  }

  std::vector<Completion> complete() {
    warm_up();
    const Clock::time_point start = Clock::now();
    for (;;) {
      if (!interrupted_ && next_ < prompts_.size()) {
        fill();
      } else {
        drop_free_rows();
      }
      if (!interrupted_ && stop_requested()) interrupt();
      if (live() == 0) break;
      const bool more = std::any_of(rows_.begin(), rows_.end(), [&](const auto& row) { return row && wants_step(*row); });
      if (more) step();
      while (unread_.size() > (more ? ahead() : 0)) collect();
    }
    g_.times_.decode_seconds = seconds_since(start) - g_.times_.prefill_seconds;
    return std::move(done_);
  }

 private:
  struct Live {
    size_t prompt;
    std::vector<int64_t> history;  // snapshot, prompt and completion tokens
    TextStream stream;
    int64_t drawn = 0;       // new tokens, read or not
    bool last = false;       // all tokens are known; their last one is to be stepped for the snapshot
    at::Tensor logits = {};  // after the tokens that have been stepped; only for snapshots
  };
  using Occupants = std::vector<std::optional<size_t>>;  // the prompt of each row

  int64_t prefill_chunk() const {
    if (options_.prefill_chunk > 0) return options_.prefill_chunk;
    return model_.device().is_cuda() ? kChunkOnGpu : kChunkOnCpu;
  }
  bool stop_requested() const { return next_ > 0 && g_.should_stop && g_.should_stop(); }
  bool wants_step(const Live& l) const { return l.last || l.drawn < options_.max_tokens; }
  // Steps that may start before the tokens of earlier ones are read. A snapshot needs the state after the last token and none beyond.
  size_t ahead() const { return sampler_->asynchronous() && !keep_ ? 1 : 0; }
  int64_t live() const {
    return std::count_if(rows_.begin(), rows_.end(), [](const auto& row) { return row.has_value(); });
  }

  void resize(int64_t rows) {
    rows_.resize(static_cast<size_t>(rows));
    sampler_ = make_sampler(options_.sampling, rows, model_.config().vocab_size, model_.device());
  }

  // On a GPU, first uses load kernels and create handles, and the first two prefills and steps record their graphs. The rows' states are
  // written later.
  void warm_up() {
    if (!model_.device().is_cuda() || options_.max_tokens == 0) return;
    const Clock::time_point start = Clock::now();
    const Weights& w = g_.engine_.weights();
    const int64_t tokens = std::min(prefill_chunk(), static_cast<int64_t>(prompts_.front().ids.size()));
    const ModelState empty = model_.initial_state(1);
    for (int i = 0; i < 2 && tokens > 0; ++i) {
      const LmOutput out =
          g_.engine_.forward(at::zeros({1, tokens}, at::kLong), std::nullopt, prompts_.front().snapshot ? &empty : nullptr);
      sampler_->draw(model_.head_step(w, out.hidden.select(1, tokens - 1)));
      sampler_->read();
    }
    if (recording_refusal(model_).empty()) {
      for (int i = 0; i < 3; ++i) {
        sampler_->draw(g_.engine_.step(sampler_->ids(), state_));
        sampler_->read();
      }
    }
    g_.times_.warm_up_seconds = seconds_since(start);
  }

  // Prefills a prompt: its state, and the logits after its last token.
  Snapshot read(size_t index) {
    const Prompt& prompt = prompts_[index];
    Snapshot now;
    if (prompt.snapshot) {
      now.ids = prompt.snapshot->ids;
      now.state = prompt.snapshot->state.clone();
      now.logits = prompt.snapshot->logits;
    }
    const auto all = static_cast<int64_t>(prompt.ids.size()), chunk = prefill_chunk();
    for (int64_t begin = 0; begin < all; begin += chunk) {
      const int64_t count = std::min(chunk, all - begin);
      const at::Tensor ids =
          at::tensor(at::ArrayRef<int64_t>(prompt.ids.data() + begin, static_cast<size_t>(count)), at::kLong).unsqueeze(0);
      const bool first = begin == 0 && !prompt.snapshot;
      LmOutput out = g_.engine_.forward(ids, std::nullopt, first ? nullptr : &now.state);
      now.state = std::move(out.final_state);
      if (begin + count == all) now.logits = model_.head_step(g_.engine_.weights(), out.hidden.select(1, count - 1)).squeeze(0);
      if (g_.on_prefill) g_.on_prefill(index, begin + count, all);
    }
    now.ids.insert(now.ids.end(), prompt.ids.begin(), prompt.ids.end());
    return now;
  }

  // Prefills prompts into the free rows and draws their first tokens.
  void fill() {
    if (live() == static_cast<int64_t>(rows_.size())) return;
    while (!unread_.empty()) collect();
    const Clock::time_point start = Clock::now();
    for (size_t r = 0; r < rows_.size(); ++r) {
      while (!rows_[r] && next_ < prompts_.size() && !stop_requested()) begin(r, next_++);  // a text may end at once
    }
    g_.times_.prefill_seconds += seconds_since(start);
  }

  void begin(size_t row, size_t prompt) {
    Snapshot now = read(prompt);
    Completion& c = done_[prompt];
    c.prompt_tokens = static_cast<int64_t>(prompts_[prompt].ids.size());
    c.cached_tokens = static_cast<int64_t>(now.ids.size()) - c.prompt_tokens;
    g_.times_.prefill_tokens += c.prompt_tokens;
    const auto r = static_cast<int64_t>(row);
    put(state_, r, now.state);
    rows_[row] = Live{prompt, std::move(now.ids), TextStream(options_.stop)};
    if (keep_) rows_[row]->logits = now.logits;
    if (options_.max_tokens == 0) {
      end(row, Completion::Reason::kLength);
      return;
    }
    sampler_->begin(r, rows_[row]->history);
    sampler_->draw(now.logits.to(model_.device()).unsqueeze(0), r);
    ++rows_[row]->drawn;
    accept(row, sampler_->read().front());
  }

  // Steps the last token of every row and draws the next ones. Free rows are stepped too; what they draw is ignored.
  void step() {
    const at::Tensor logits = g_.engine_.step(sampler_->ids(), state_);
    sampler_->draw(logits);
    Occupants occupants(rows_.size());
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r]) continue;
      if (keep_) rows_[r]->logits = logits[static_cast<int64_t>(r)];
      if (rows_[r]->last) {
        end(r, done_[rows_[r]->prompt].reason);
      } else {
        ++rows_[r]->drawn;
        occupants[r] = rows_[r]->prompt;
      }
    }
    unread_.push_back(std::move(occupants));
    if (g_.on_step) g_.on_step();
  }

  // Reads the tokens of the oldest unread step. Those of a row whose text has ended since are discarded.
  void collect() {
    const std::vector<int64_t> ids = sampler_->read();
    const Occupants occupants = std::move(unread_.front());
    unread_.pop_front();
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r] || !occupants[r] || *occupants[r] != rows_[r]->prompt || rows_[r]->last) continue;
      if (accept(r, ids[r])) ++g_.times_.decode_tokens;
    }
  }

  // Adds a token to the text of a row, unless it ends the text; then returns false.
  bool accept(size_t row, int64_t id) {
    if (id < 0) throw std::runtime_error("the logits hold no finite largest value: the model's weights or its state are damaged");
    Live& l = *rows_[row];
    Completion& c = done_[l.prompt];
    const std::vector<int64_t>& eos = model_.config().eos;
    if (!options_.ignore_eos && std::find(eos.begin(), eos.end(), id) != eos.end()) {
      end(row, Completion::Reason::kEndOfText);
      return false;
    }
    c.ids.push_back(id);
    l.history.push_back(id);
    const std::string text = l.stream.add(g_.tokenizer_.piece(id));
    if (g_.on_text && !text.empty()) g_.on_text(l.prompt, text);
    if (l.stream.stopped()) {
      end_after_step(row, Completion::Reason::kStop);
    } else if (static_cast<int64_t>(c.ids.size()) >= options_.max_tokens) {
      end_after_step(row, Completion::Reason::kLength);
    }
    return true;
  }

  // Ends the text of a row whose last token has not been stepped. The step is needed only for a snapshot.
  void end_after_step(size_t row, Completion::Reason reason) {
    if (!keep_) return end(row, reason);
    done_[rows_[row]->prompt].reason = reason;
    rows_[row]->last = true;
  }

  void end(size_t row, Completion::Reason reason) {
    Live& l = *rows_[row];
    Completion& c = done_[l.prompt];
    c.reason = reason;
    const std::string left = l.stream.finish();
    if (g_.on_text && !left.empty()) g_.on_text(l.prompt, left);
    c.text = l.stream.text();
    if (keep_) {
      c.snapshot = {l.history, state_.select({static_cast<int64_t>(row)}), l.logits.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)};
      model_.set_state_type(c.snapshot.state, at::kFloat);
    }
    const size_t prompt = l.prompt;
    rows_[row].reset();
    if (g_.on_done) g_.on_done(prompt, c);
  }

  void interrupt() {
    interrupted_ = true;
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r] && !rows_[r]->last) end_after_step(r, Completion::Reason::kInterrupted);
    }
  }

  // Shrinks the batch to the rows in use. On a GPU another batch has to be recorded, which takes as long as many steps: it shrinks only
  // when half of the rows are free.
  void drop_free_rows() {
    const auto all = static_cast<int64_t>(rows_.size());
    if (live() == all || (model_.device().is_cuda() && 2 * live() > all)) return;
    while (!unread_.empty()) collect();
    std::vector<int64_t> kept;
    std::vector<std::optional<Live>> rest;
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r]) continue;
      kept.push_back(static_cast<int64_t>(r));
      rest.push_back(std::move(rows_[r]));
    }
    rows_ = std::move(rest);
    if (rows_.empty()) return;
    state_ = state_.select(kept);
    resize(static_cast<int64_t>(rows_.size()));
    for (size_t r = 0; r < rows_.size(); ++r) sampler_->begin(static_cast<int64_t>(r), rows_[r]->history);
  }

  Generator& g_;
  const CausalLM& model_;
  const std::vector<Prompt>& prompts_;
  const GenerateOptions& options_;
  bool keep_, interrupted_ = false;
  size_t next_ = 0;  // the first prompt that has not begun
  std::vector<Completion> done_;
  std::vector<std::optional<Live>> rows_;
  ModelState state_;
  std::unique_ptr<BatchSampler> sampler_;
  std::deque<Occupants> unread_;
};

std::vector<Completion> Generator::run(const std::vector<Prompt>& prompts, const GenerateOptions& options, bool keep_snapshots) {
  const at::NoGradGuard no_grad;
  options.sampling.check();
  if (options.max_tokens < 0 || options.prefill_chunk < 0 || options.batch < 0)
    throw std::invalid_argument("max_tokens, prefill_chunk and batch must be at least 0");
  for (const Prompt& prompt : prompts) {
    if (prompt.ids.empty() && (!prompt.snapshot || prompt.snapshot->ids.empty()))
      throw std::invalid_argument("the prompt has no tokens, and the model's config names no token that begins a text");
  }
  times_ = {};
  if (prompts.empty()) return {};
  return GenerationRun(*this, prompts, options, keep_snapshots).complete();
}

}  // namespace cyfa
