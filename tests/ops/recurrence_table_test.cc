// Tests the recurrence table: required fields, backend refusals, and consistency with the documentation and the dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "cyfa/ops/common/check.h"
#include "tests/ops/cases.h"

namespace cyfa::test {
namespace {

using ops::Backend;
using ops::Recurrence;

ops::RecurrenceInputs inputs_of(const Recurrence& r) { return recurrence_inputs(r, make_inputs({.op = Op(r), .T = 5, .H = 3})); }

TEST(RecurrenceTable, EntriesAreWhole) {
  std::set<std::string> names;
  for (const Recurrence& r : ops::recurrences()) {
    SCOPED_TRACE(r.op);
    EXPECT_TRUE(names.insert(r.op).second) << "two entries have this name";
    EXPECT_EQ(&ops::recurrence_of(r.op), &r);
    EXPECT_TRUE(std::string(r.definition).starts_with("S_t = "));
    bool gated = false, delta = false;
    for (const ops::RecurrenceArgument& a : r.arguments) {
      gated = gated || a.member == &ops::RecurrenceInputs::log_alpha;
      delta = delta || a.member == &ops::RecurrenceInputs::beta;
    }
    EXPECT_EQ(gated, r.gate != ops::Gate::kNone);
    EXPECT_EQ(delta, r.delta);
    ASSERT_FALSE(r.backends.empty());
    EXPECT_EQ(r.backends.back().id, Backend::kReference);
    EXPECT_TRUE(std::any_of(r.backends.begin(), r.backends.end(), [](const auto& b) { return b.step != nullptr; }));
  }
  EXPECT_THROW(ops::recurrence_of("cyclic_flow"), ops::ArgumentError);
}

TEST(RecurrenceTable, TheDocumentListsEveryEntry) {
  std::ifstream file(CYFA_SOURCE_DIR "/docs/recurrences.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const Recurrence& r : ops::recurrences()) {
    const std::string row = "| `" + std::string(r.op) + "` | " + r.definition + " |";
    EXPECT_NE(text.str().find(row), std::string::npos) << "docs/recurrences.md has no row: " << row;
  }
}

TEST(RecurrenceTable, SchemasFollowTheArguments) {
  for (const Recurrence& r : ops::recurrences()) {
    for (const bool step : {false, true}) {
      const std::string name = std::string("cyfa::") + r.op + (step ? "_step" : "");
      std::vector<std::string> wanted = {"q", "k", "v"};
      for (const ops::RecurrenceArgument& a : r.arguments) wanted.emplace_back(a.name);
      if (step) {
        wanted.insert(wanted.end(), {"state", "scale"});
      } else {
        wanted.insert(wanted.end(), {"initial_state", "cu_seqlens", "scale", "chunk", "segment_chunks", "backend"});
      }
      std::vector<std::string> found;
      for (const c10::Argument& a : c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").schema().arguments()) {
        found.push_back(a.name());
      }
      EXPECT_EQ(found, wanted) << name;
    }
  }
}

TEST(RecurrenceTable, EveryBackendAnswersWithoutACall) {
  for (const Recurrence& r : ops::recurrences()) {
    std::map<Backend, bool> takes;
    for (const ops::BackendOffer& offer : ops::recurrence_backends(r, inputs_of(r))) takes[offer.backend] = offer.refusal.empty();
    EXPECT_EQ(takes, (std::map<Backend, bool>{{Backend::kReference, true}, {Backend::kPortable, true}, {Backend::kSm90, false}})) << r.op;
  }
}

TEST(RecurrenceTable, BackendsAreAskedAboutGoodInputsOnly) {
  for (const Recurrence& r : ops::recurrences()) {
    ops::RecurrenceInputs in = inputs_of(r);
    in.k = at::Tensor();
    EXPECT_THROW(ops::recurrence_backends(r, in), ops::ArgumentError) << r.op;
  }
}

TEST(RecurrenceTable, TheBackendThatRunsIsReported) {
  for (const Recurrence& r : ops::recurrences()) {
    const ops::RecurrenceInputs in = inputs_of(r);
    EXPECT_EQ(ops::run_recurrence(r, in).backend, Backend::kPortable);
    EXPECT_EQ(ops::run_recurrence(r, in, {.backend = Backend::kReference}).backend, Backend::kReference);
    try {
      ops::run_recurrence(r, in, {.backend = Backend::kSm90});
      ADD_FAILURE() << r.op << ": sm90 took tensors of a CPU";
    } catch (const ops::ArgumentError& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(std::string(r.op) + ": backend sm90 refuses: ")) << message;
    }
  }
}

// A tensor that the op does not take throws instead of being ignored.
TEST(RecurrenceTable, OtherOpsArgumentsAreRefused) {
  for (const Recurrence& r : ops::recurrences()) {
    for (const auto member : {&ops::RecurrenceInputs::log_alpha, &ops::RecurrenceInputs::beta}) {
      ops::RecurrenceInputs in = inputs_of(r);
      if ((in.*member).has_value()) continue;
      in.*member = at::zeros({2, 5, 3});
      EXPECT_THROW(ops::run_recurrence(r, in), ops::ArgumentError) << r.op;
    }
  }
}

}  // namespace
}  // namespace cyfa::test
