// See scorer.h.
#include "cyfa/eval/scorer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "cyfa/decode/generator.h"
#include "cyfa/eval/rolling.h"
#include "cyfa/ops/dense/linear_in_blocks.h"

namespace cyfa::eval {
namespace {

constexpr size_t kLeastShared = 8;       // tokens: sharing fewer costs more in copies of states than it saves
constexpr size_t kSegment = 4096;        // longer sequences of kTokens are read in segments, from state to state
constexpr int64_t kLeastRows = 64;       // of a matrix product: below a few rows per thread, MKL adds in another order
constexpr size_t kLeastQueries = 8;      // of a sequence in softmax attention, whose products are made sequence by sequence
constexpr int64_t kHeadRows = 512;       // rows whose logits exist at the same time
constexpr double kStateBytes = 1 << 30;  // most memory for the states of one layer in a pack

size_t common_beginning(const std::vector<ScoredSequence>& group) {
  if (group.size() < 2) return 0;
  const std::vector<int64_t>& first = group.front().inputs;
  size_t shared = first.size();
  for (const ScoredSequence& s : group) {
    const auto limit = first.begin() + static_cast<std::ptrdiff_t>(std::min(shared, s.inputs.size()));
    shared = static_cast<size_t>(std::mismatch(first.begin(), limit, s.inputs.begin()).first - first.begin());
  }
  return shared < kLeastShared ? 0 : shared;
}

int64_t least_rows() { return std::max<int64_t>(kLeastRows, 8 * at::get_num_threads()); }

// Packed sequences in the making.
struct Packed {
  std::vector<int64_t> ids, borders = {0};

  // Adds a sequence, followed by zeros up to `least` tokens, and returns the place of its first token.
  size_t add(std::span<const int64_t> sequence, size_t least = 0) {
    const size_t place = ids.size();
    ids.insert(ids.end(), sequence.begin(), sequence.end());
    if (sequence.size() < least) ids.insert(ids.end(), least - sequence.size(), 0);
    borders.push_back(static_cast<int64_t>(ids.size()));
    return place;
  }
  size_t sequences() const { return borders.size() - 1; }
  // Adds a sequence of zeros if there are too few tokens.
  void fill() {
    const int64_t missing = least_rows() - static_cast<int64_t>(ids.size());
    if (missing > 0) add(std::vector<int64_t>(static_cast<size_t>(missing), 0));
  }
};

at::Tensor long_tensor(const std::vector<int64_t>& values) { return at::tensor(at::ArrayRef<int64_t>(values), at::kLong); }

// Contiguous rows of a state, [N, ...]: those of `sequences`.
MixerState selected(const MixerState& state, const at::Tensor& sequences) {
  MixerState result;
  for (const at::Tensor& x : state) result.push_back(x.index_select(0, sequences));
  return result;
}

ScoredSequence sequence_of(const TokenPair& pair, int64_t max_length, size_t request, int64_t& truncated) {
  const auto most = static_cast<size_t>(max_length);
  if (pair.continuation.size() > most) {
    throw std::invalid_argument("a continuation has " + std::to_string(pair.continuation.size()) + " tokens, and the model sees at most " +
                                std::to_string(max_length) + "; raise --max-length");
  }
  ScoredSequence s;
  s.request = request;
  s.targets = pair.continuation;
  s.inputs = pair.context;
  s.inputs.insert(s.inputs.end(), pair.continuation.begin(), pair.continuation.end() - 1);
  if (s.inputs.size() > most) {
    const size_t cut = s.inputs.size() - most;
    truncated += static_cast<int64_t>(cut);
    s.inputs.erase(s.inputs.begin(), s.inputs.begin() + static_cast<std::ptrdiff_t>(cut));
  }
  s.first = s.inputs.size() - s.targets.size();
  return s;
}

}  // namespace

int64_t Prepared::tokens() const {
  size_t sum = 0;
  for (const std::vector<ScoredSequence>& group : groups) {
    const size_t shared = common_beginning(group);
    sum += shared;
    for (const ScoredSequence& s : group) sum += s.inputs.size() - shared;
  }
  return static_cast<int64_t>(sum);
}

size_t Prepared::longest() const {
  size_t most = 0;
  for (const std::vector<ScoredSequence>& group : groups) {
    for (const ScoredSequence& s : group) most = std::max(most, s.inputs.size());
  }
  for (const Generation& g : generations) most = std::max(most, g.prompt.size());
  return most;
}

Scorer::Scorer(StepEngine& engine, const Encoder& encoder, const ScorerOptions& options)
    : engine_(engine), model_(engine.model()), encoder_(encoder), options_(options) {
  if (options.max_length < 1 || options.batch_tokens < 1 || options.batch_sequences < 1)
    throw std::invalid_argument("max_length, batch_tokens and batch_sequences must be at least 1");
  for (const CausalLM::Layer& layer : model_.layers()) {
    for (const StateSpec& spec : layer.block->mixer().state()) least_tokens_ = spec.grows ? kLeastQueries : least_tokens_;
  }
}

Prepared Scorer::prepare(const std::vector<Request>& requests) const {
  Prepared p;
  p.responses.resize(requests.size());
  std::vector<ScoredSequence> choices;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    Response& answer = p.responses[i];
    answer.truncated = r.truncated;
    switch (r.kind) {
      case Request::Kind::kContinuation:
        choices.push_back(sequence_of(encoder_.pair(r.context, r.continuation), options_.max_length, i, answer.truncated));
        break;
      case Request::Kind::kRolling: {
        const std::vector<TokenPair> windows = rolling_windows(encoder_.encode(r.context), encoder_.prefix(), options_.max_length);
        for (const TokenPair& window : windows) p.groups.push_back({sequence_of(window, options_.max_length, i, answer.truncated)});
        break;
      }
      case Request::Kind::kTokens:
        if (r.ids.size() < 2) throw std::invalid_argument("a sequence of one token has nothing to score");
        p.groups.push_back({{{r.ids.begin(), r.ids.end() - 1}, {r.ids.begin() + 1, r.ids.end()}, 0, i}});
        break;
      case Request::Kind::kGenerate: {
        std::vector<int64_t> prompt = r.bos ? encoder_.encode(r.context) : encoder_.encode_plain(r.context);
        if (prompt.empty()) prompt.push_back(encoder_.prefix());
        const int64_t room = options_.max_length - r.max_tokens, all = static_cast<int64_t>(prompt.size());
        if (r.may_truncate && room < 1) {
          throw std::invalid_argument("max_length " + std::to_string(options_.max_length) + " leaves no room for a prompt beside " +
                                      std::to_string(r.max_tokens) + " new tokens; raise --max-length");
        }
        if (r.may_truncate && all > room) {
          answer.truncated += all - room;
          prompt.erase(prompt.begin(), prompt.end() - room);
        }
        p.generations.push_back({i, std::move(prompt), r.stop, r.max_tokens});
        break;
      }
    }
  }
  if (!choices.empty()) p.groups.push_back(std::move(choices));
  return p;
}

double Scorer::state_bytes(size_t sequences, size_t longest) const {
  double most = 0;
  for (const CausalLM::Layer& layer : model_.layers()) {
    double bytes = 0;
    for (const StateSpec& spec : layer.block->mixer().state()) {
      double scalars = spec.grows ? static_cast<double>(longest + 64) : 1;  // a cache has spare places
      for (size_t i = spec.grows ? 1 : 0; i < spec.shape.size(); ++i) scalars *= static_cast<double>(spec.shape[i]);
      bytes += scalars * static_cast<double>(c10::elementSize(spec.dtype));
    }
    most = std::max(most, bytes);
  }
  return most * static_cast<double>(sequences);
}

size_t Scorer::batch_end(std::span<const Prepared> documents, size_t begin) const {
  int64_t tokens = 0;
  size_t sequences = 0, longest = 0, texts = 0, end = begin;
  for (; end < documents.size(); ++end) {
    const Prepared& d = documents[end];
    tokens += d.tokens();
    longest = std::max(longest, d.longest());
    for (const std::vector<ScoredSequence>& group : d.groups) sequences += 1 + 2 * group.size();
    texts += d.generations.size();
    if (end == begin) continue;
    if (tokens > options_.batch_tokens || state_bytes(sequences, longest) > kStateBytes ||
        texts > 4 * static_cast<size_t>(options_.batch_sequences))
      break;
  }
  return end;
}

std::vector<std::vector<Response>> Scorer::answer(std::span<const Prepared> documents) {
  const at::NoGradGuard no_grad;
  const ops::LinearInBlocks in_blocks;
  std::vector<std::vector<Response>> responses;
  for (const Prepared& d : documents) responses.push_back(d.responses);
  score(documents, responses);
  if (!generate(documents, responses)) return {};
  return responses;
}

void Scorer::add_scores(const at::Tensor& rows, const std::vector<int64_t>& row_of, const std::vector<int64_t>& targets,
                        std::vector<float>& log_likelihoods, std::vector<char>& greedy) const {
  const int64_t all = rows.size(0);
  size_t next = 0;
  for (int64_t begin = 0; begin < all; begin += kHeadRows) {
    const int64_t count = std::min(kHeadRows, all - begin);
    at::Tensor part = rows.narrow(0, begin, count);
    if (count < least_rows()) part = at::cat({part, at::zeros({least_rows() - count, part.size(1)}, part.options())});
    at::Tensor logits = model_.head(engine_.weights(), part);
    if (logits.scalar_type() != at::kDouble) logits = logits.to(at::kFloat);
    std::vector<int64_t> places, wanted;
    const size_t first = next;
    for (; next < row_of.size() && row_of[next] < begin + count; ++next) {
      places.push_back(row_of[next] - begin);
      wanted.push_back(targets[next]);
    }
    const at::Tensor place = long_tensor(places).to(logits.device()), target = long_tensor(wanted).to(logits.device());
    const at::Tensor found = at::log_softmax(logits, -1).index({place, target}).to(at::kCPU, at::kFloat).contiguous();
    const at::Tensor best = (logits.argmax(-1).index_select(0, place) == target).to(at::kCPU).contiguous();
    for (size_t i = first; i < next; ++i) {
      const float value = found.const_data_ptr<float>()[i - first];
      if (!std::isfinite(value)) throw std::runtime_error("a log-likelihood is not finite: the model's weights are damaged");
      log_likelihoods[i] = value;
      greedy[i] = best.const_data_ptr<bool>()[i - first] ? 1 : 0;
    }
  }
}

void Scorer::score(std::span<const Prepared> documents, std::vector<std::vector<Response>>& responses) {
  // Stage one has the shared beginnings and the sequences that share nothing, stage two the rest of the others.
  Packed one, two;
  std::vector<int64_t> state_of;  // for each sequence of stage two, the one of stage one that it continues
  struct Target {
    int64_t place;  // of the row: in stage one, or in stage two behind all of stage one
    int64_t id;
    const ScoredSequence* sequence;
    Response* response;
  };
  struct Scored {
    const ScoredSequence* sequence;
    Response* response;
    size_t shared, before, after;  // places of the first token of the beginning and of the rest
  };
  std::vector<Scored> scored;
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const std::vector<ScoredSequence>& group : documents[d].groups) {
      if (group.size() == 1 && group[0].inputs.size() > kSegment) {
        score_long(group[0], responses[d][group[0].request]);
        continue;
      }
      const size_t shared = common_beginning(group);
      size_t before = 0;
      if (shared > 0) before = one.add(std::span(group[0].inputs).first(shared));
      const auto beginning = static_cast<int64_t>(one.sequences()) - 1;
      for (const ScoredSequence& s : group) {
        Scored place{&s, &responses[d][s.request], shared, before, 0};
        if (shared == 0) {
          place.before = one.add(s.inputs, least_tokens_);
          place.shared = s.inputs.size();
        } else if (s.inputs.size() > shared) {
          place.after = two.add(std::span(s.inputs).subspan(shared), least_tokens_);
          state_of.push_back(beginning);
        }
        scored.push_back(place);
      }
    }
  }
  if (scored.empty()) return;
  one.fill();
  const bool continues = !two.ids.empty();
  if (continues) {
    two.fill();
    state_of.resize(two.sequences(), 0);
  }
  std::vector<Target> targets;
  for (const Scored& s : scored) {
    for (size_t i = 0; i < s.sequence->targets.size(); ++i) {
      const size_t at = s.sequence->first + i;
      const size_t place = at < s.shared ? s.before + at : one.ids.size() + s.after + at - s.shared;
      targets.push_back({static_cast<int64_t>(place), s.sequence->targets[i], s.sequence, s.response});
    }
  }

  const Weights& w = engine_.weights();
  const at::Device device = model_.device();
  const at::Tensor borders_one = long_tensor(one.borders).to(device);
  at::Tensor x = model_.embed(w, long_tensor(one.ids).unsqueeze(0)), y, borders_two, from;
  if (continues) {
    borders_two = long_tensor(two.borders).to(device);
    from = long_tensor(state_of).to(device);
    y = model_.embed(w, long_tensor(two.ids).unsqueeze(0));
  }
  for (const CausalLM::Layer& layer : model_.layers()) {
    const Weights own = layer.weights(w);
    MixerState after, unused;
    x = layer.block->forward(own, x, borders_one, nullptr, &after);
    if (!continues) continue;
    const MixerState before = selected(after, from);
    after.clear();
    y = layer.block->forward(own, y, borders_two, &before, &unused);
  }

  // Rows of hidden states, each once, in the order of their places.
  std::map<int64_t, int64_t> row_of_place;
  for (const Target& t : targets) row_of_place.emplace(t.place, 0);
  std::vector<int64_t> places;
  for (auto& [place, row] : row_of_place) {
    row = static_cast<int64_t>(places.size());
    places.push_back(place);
  }
  std::vector<size_t> order(targets.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::pair(targets[a].place, a) < std::pair(targets[b].place, b); });
  std::vector<int64_t> rows, ids;
  for (const size_t i : order) {
    rows.push_back(row_of_place[targets[i].place]);
    ids.push_back(targets[i].id);
  }
  at::Tensor hidden = x.squeeze(0);
  if (continues) hidden = at::cat({hidden, y.squeeze(0)});
  hidden = hidden.index_select(0, long_tensor(places).to(device));
  std::vector<float> found(rows.size());
  std::vector<char> greedy(rows.size());
  add_scores(hidden, rows, ids, found, greedy);

  // Sums in the order of the tokens, so that they do not depend on the order of the rows.
  std::vector<float> in_order(targets.size());
  std::vector<char> greedy_in_order(targets.size());
  for (size_t i = 0; i < order.size(); ++i) {
    in_order[order[i]] = found[i];
    greedy_in_order[order[i]] = greedy[i];
  }
  size_t next = 0;
  for (const Scored& s : scored) {
    Response& r = *s.response;
    if (r.tokens == 0) r.greedy = true;
    for (size_t i = 0; i < s.sequence->targets.size(); ++i, ++next) {
      r.log_likelihood += static_cast<double>(in_order[next]);
      r.greedy = r.greedy && greedy_in_order[next] != 0;
      r.each.push_back(in_order[next]);
    }
    r.tokens += static_cast<int64_t>(s.sequence->targets.size());
  }
}

void Scorer::score_long(const ScoredSequence& sequence, Response& response) {
  const Weights& w = engine_.weights();
  ModelState state = model_.initial_state(1);
  response.greedy = response.tokens == 0 || response.greedy;
  for (size_t begin = 0; begin < sequence.inputs.size();) {
    const size_t left = sequence.inputs.size() - begin;
    const size_t count = left < kSegment + static_cast<size_t>(least_rows()) ? left : kSegment;  // none is short
    const std::vector<int64_t> part(sequence.inputs.begin() + static_cast<std::ptrdiff_t>(begin),
                                    sequence.inputs.begin() + static_cast<std::ptrdiff_t>(begin + count));
    LmOutput out = model_.forward(w, long_tensor(part).unsqueeze(0), std::nullopt, &state);
    state = std::move(out.final_state);
    const size_t skipped = sequence.first > begin ? std::min(sequence.first - begin, count) : 0;
    std::vector<int64_t> rows, ids;
    for (size_t i = skipped; i < count; ++i) {
      rows.push_back(static_cast<int64_t>(i - skipped));
      ids.push_back(sequence.targets[begin + i - sequence.first]);
    }
    if (!rows.empty()) {
      std::vector<float> found(rows.size());
      std::vector<char> greedy(rows.size());
      add_scores(out.hidden.squeeze(0).narrow(0, static_cast<int64_t>(skipped), static_cast<int64_t>(rows.size())), rows, ids, found,
                 greedy);
      for (size_t i = 0; i < found.size(); ++i) {
        response.log_likelihood += static_cast<double>(found[i]);
        response.greedy = response.greedy && greedy[i] != 0;
        response.each.push_back(found[i]);
      }
      response.tokens += static_cast<int64_t>(rows.size());
    }
    begin += count;
  }
}

bool Scorer::generate(std::span<const Prepared> documents, std::vector<std::vector<Response>>& responses) {
  struct Wanted {
    const Prepared::Generation* generation;
    Response* response;
  };
  std::map<std::pair<int64_t, std::vector<std::string>>, std::vector<Wanted>> alike;  // by limit and stop strings
  for (size_t d = 0; d < documents.size(); ++d) {
    for (const Prepared::Generation& g : documents[d].generations) {
      alike[{g.max_tokens, g.stop}].push_back({&g, &responses[d][g.request]});
    }
  }
  for (const auto& [settings, wanted] : alike) {
    std::vector<Prompt> prompts;
    for (const Wanted& one : wanted) prompts.push_back({one.generation->prompt, std::nullopt});
    GenerateOptions options;
    options.max_tokens = settings.first;
    options.stop = settings.second;
    options.batch = options_.batch_sequences;
    options.sampling.temperature = 0;
    Generator generator(engine_, encoder_.tokenizer());
    generator.should_stop = should_stop;
    if (on_prefill) generator.on_prefill = [&](size_t, int64_t done, int64_t all) { on_prefill(done, all); };
    const std::vector<Completion> done = generator.run(prompts, options);
    if (should_stop && should_stop()) return false;
    for (size_t i = 0; i < wanted.size(); ++i) {
      // Text by the tokenizer, as other harnesses have it: without the space that SentencePiece puts before the first word.
      std::string text = encoder_.decode(done[i].ids);
      for (const std::string& stop : settings.second) {
        if (!stop.empty()) text.resize(std::min(text.find(stop), text.size()));
      }
      wanted[i].response->text = std::move(text);
      wanted[i].response->tokens = static_cast<int64_t>(done[i].ids.size());
    }
  }
  return true;
}

}  // namespace cyfa::eval
