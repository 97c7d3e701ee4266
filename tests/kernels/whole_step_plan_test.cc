// Tests that the parts of the whole step's thread blocks make up the whole, for all sizes and numbers of blocks.
#include "cyfa/kernels/whole_step/whole_step_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cyfa/kernels/cyclic_flow/projection_layout.h"

namespace cyfa::whole_step {
namespace {

std::vector<Sizes> all_sizes() {
  std::vector<Sizes> all;
  for (const int blocks : {78, 114, 132}) {
    all.push_back({.layers = 24, .D = 1024, .H = 4, .K = 256, .V = 256, .M = 128, .taps = 4, .F = 2816, .vocab = 32000, .blocks = blocks});
    all.push_back({.layers = 24, .D = 1536, .H = 6, .K = 256, .V = 256, .M = 128, .taps = 4, .F = 4096, .vocab = 32000, .blocks = blocks});
    all.push_back({.layers = 8, .D = 256, .H = 4, .K = 64, .V = 64, .M = 64, .taps = 4, .F = 768, .vocab = 4099, .blocks = blocks});
    all.push_back({.layers = 1, .D = 192, .H = 1, .K = 32, .V = 128, .M = 16, .taps = 1, .F = 64, .vocab = 5, .blocks = blocks});
  }
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    all.push_back(all[i]);
    all.back().share = 2;
  }
  return all;
}

TEST(WholeStepPlan, EveryTileHasOneBlock) {
  for (const Sizes& n : all_sizes()) {
    for (const auto& [tiles, part] : std::vector<std::pair<int, Part (*)(const Sizes&, int)>>{{n.projection_tiles(), projection_part},
                                                                                              {n.row_tiles(), row_part},
                                                                                              {n.hidden_tiles(), hidden_part},
                                                                                              {n.head_tiles(), head_part}}) {
      std::vector<int> owners(static_cast<size_t>(tiles));
      for (int block = 0; block < n.blocks; ++block) {
        const Part own = part(n, block);
        EXPECT_GE(own.count, tiles / n.blocks);
        EXPECT_LE(own.count, tiles / n.blocks + 1);
        for (int t = own.first; t < own.first + own.count; ++t) ++owners.at(static_cast<size_t>(t));
      }
      EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), tiles);
    }
  }
}

TEST(WholeStepPlan, BlocksHaveAlmostEquallyManyBytesOfWeights) {
  const Sizes n = all_sizes()[8];  // the 400M model on 132 multiprocessors
  ASSERT_EQ(n.D, 1024);
  ASSERT_EQ(n.blocks, 132);
  int least = INT32_MAX, most = 0;
  for (int block = 0; block < n.blocks; ++block) {
    const int bytes =
        2 * kTileRows *
        (n.D * (projection_part(n, block).count + hidden_part(n, block).count) + (n.H * n.V + n.F) * row_part(n, block).count);
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  EXPECT_LE(most - least, 64 * 1024);
}

TEST(WholeStepPlan, EveryPartOfAStateHasOneBlock) {
  for (const Sizes& n : all_sizes()) {
    if (n.roles() > n.blocks) continue;
    std::vector<int> keys(static_cast<size_t>(n.H * n.M)), values(static_cast<size_t>(n.H * n.V));
    for (int block = 0; block < n.blocks; ++block) {
      const Role role = role_of(n, block);
      const bool of_keys = role.kind == RoleKind::kKeys;
      if (role.kind == RoleKind::kNone) continue;
      const int each = of_keys ? n.key_slots() : n.value_columns();
      for (int i = 0; i < each; ++i)
        ++(of_keys ? keys : values).at(static_cast<size_t>(role.head * (of_keys ? n.M : n.V) + role.part * each + i));
    }
    EXPECT_EQ(std::count(keys.begin(), keys.end(), 1), n.H * n.M);
    EXPECT_EQ(std::count(values.begin(), values.end(), 1), n.H * n.V);
  }
}

TEST(WholeStepPlan, ExchangesDoNotOverlapAndAreAligned) {
  for (const Sizes& n : all_sizes()) {
    EXPECT_EQ(n.projections(), (cyclic_flow::ProjectionLayout{n.H, n.K, n.V, n.rank()}.columns()));
    const Words at = words_of(n);
    const std::vector<std::pair<int, int>> all = {{at.x, n.D / 2},        {at.between, n.D / 2}, {at.y, n.projections() / 2},
                                                  {at.scores, n.H * n.M}, {at.o, n.H * n.V / 2}, {at.squares, n.H * n.value_parts()},
                                                  {at.hidden, n.F / 2},   {at.of_layer, 0}};
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].first % 2, 0);
      if (i > 0) {
        EXPECT_LE(all[i - 1].first + all[i - 1].second, all[i].first);
      }
    }
  }
}

}  // namespace
}  // namespace cyfa::whole_step
