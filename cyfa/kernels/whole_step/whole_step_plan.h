// Who does what in the whole step (whole_step_sm90.h), as functions of the sizes and of the thread block: shared by the kernel, the host
// and the test that adds up all parts. No CUDA, no torch.
//
// Products. A tile is eight rows of weights. The tiles of a
// matrix are dealt out to all blocks, as evenly as possible, and the blocks that get one more of one matrix get one less of another. A tile
// of gate and up is four rows of each, so that a block has both factors of a hidden unit.
//
// Mixer. A head's key state is split by slots and its value state by columns, so that no sum crosses a block: a block of keys has
// `key_slots` slots of all key rows and yields their scores, a block of values has `value_columns` columns of all slots and yields their
// outputs. Every block has at most one such role.
//
// Exchange. What a block computes for others is written as words of eight bytes in global memory: two bf16 or one fp32 in the low half, an
// epoch in the high half.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define CYFA_WHOLE_STEP __host__ __device__
#else
#define CYFA_WHOLE_STEP
#endif

namespace cyfa::whole_step {

constexpr int kTileRows = 8;
constexpr int kUnitColumns = 128;  // columns of a tile that a warp takes at a time
constexpr int kWarps = 8;          // that compute products, see whole_step_sm90.cu
constexpr int kChunkColumns = kWarps * kUnitColumns;
constexpr int kStageBytes = 2 * kTileRows * kChunkColumns;  // of the ring of weights

struct Sizes {
  int layers = 0, D = 0, H = 0, K = 0, V = 0, M = 0, taps = 0, F = 0, vocab = 0;
  int blocks = 0;  // of the launch
  int share = 1;   // 1 or 2: size of the mixer's parts

  CYFA_WHOLE_STEP constexpr int rank() const { return V; }  // of the output gate
  CYFA_WHOLE_STEP constexpr int key_slots() const { return 8 * share; }
  CYFA_WHOLE_STEP constexpr int value_columns() const { return 16 * share; }
  CYFA_WHOLE_STEP constexpr int key_parts() const { return M / key_slots(); }  // of a head
  CYFA_WHOLE_STEP constexpr int value_parts() const { return V / value_columns(); }
  CYFA_WHOLE_STEP constexpr int roles() const { return H * (key_parts() + value_parts()); }
  // Rows of the fused projection: ProjectionLayout::columns().
  CYFA_WHOLE_STEP constexpr int projections() const { return (H * (2 * K + V) + rank() + 3 * H + 7) / 8 * 8; }

  CYFA_WHOLE_STEP constexpr int projection_tiles() const { return projections() / kTileRows; }
  CYFA_WHOLE_STEP constexpr int row_tiles() const { return D / kTileRows; }  // of the output projection and of the down projection
  CYFA_WHOLE_STEP constexpr int hidden_tiles() const { return F / (kTileRows / 2); }
  CYFA_WHOLE_STEP constexpr int head_tiles() const { return (vocab + kTileRows - 1) / kTileRows; }
};

CYFA_WHOLE_STEP constexpr int chunks_of(int columns) { return (columns + kChunkColumns - 1) / kChunkColumns; }
CYFA_WHOLE_STEP constexpr int stages_of(int bytes) { return (bytes + kStageBytes - 1) / kStageBytes; }

// Consecutive tiles of one block.
struct Part {
  int first = 0, count = 0;
};

// The part of `block`; blocks from `start` on, cyclically, are the first to have one tile more than the others.
CYFA_WHOLE_STEP constexpr Part part_of(int tiles, int blocks, int block, int start) {
  const int place = (block + blocks - start % blocks) % blocks, each = tiles / blocks, more = tiles % blocks;
  return {place * each + (place < more ? place : more), each + (place < more ? 1 : 0)};
}

CYFA_WHOLE_STEP constexpr Part row_part(const Sizes& n, int block) { return part_of(n.row_tiles(), n.blocks, block, 0); }
CYFA_WHOLE_STEP constexpr Part projection_part(const Sizes& n, int block) {
  return part_of(n.projection_tiles(), n.blocks, block, n.row_tiles() % n.blocks);
}
CYFA_WHOLE_STEP constexpr Part hidden_part(const Sizes& n, int block) {
  return part_of(n.hidden_tiles(), n.blocks, block, (n.row_tiles() + n.projection_tiles()) % n.blocks);
}
CYFA_WHOLE_STEP constexpr Part head_part(const Sizes& n, int block) { return part_of(n.head_tiles(), n.blocks, block, 0); }

enum class RoleKind { kNone, kKeys, kValues };

struct Role {
  RoleKind kind = RoleKind::kNone;
  int head = 0, part = 0;
};

CYFA_WHOLE_STEP constexpr Role role_of(const Sizes& n, int block) {
  const int keys = n.H * n.key_parts();
  if (block < keys) return {RoleKind::kKeys, block / n.key_parts(), block % n.key_parts()};
  if (block < n.roles()) return {RoleKind::kValues, (block - keys) / n.value_parts(), (block - keys) % n.value_parts()};
  return {};
}

// Where the words of each exchange begin, all at multiples of two. Everything is there twice, for even and for odd layers: a block may be
// writing for the next layer while another one still reads.
struct Words {
  int x = 0;         // [D / 2] a layer's input
  int between = 0;   // [D / 2] input of the SwiGLU
  int y = 0;         // [projections / 2]
  int scores = 0;    // [H, M] fp32
  int o = 0;         // [H V / 2] output of the heads times the gate and the norm's weight, before division by the RMS
  int squares = 0;   // [H, value_parts] fp32: sums of squares of the outputs before that
  int hidden = 0;    // [F / 2]
  int of_layer = 0;  // number of words for one parity

  CYFA_WHOLE_STEP constexpr int total() const { return 2 * of_layer; }
};

CYFA_WHOLE_STEP constexpr Words words_of(const Sizes& n) {
  const auto even = [](int count) { return (count + 1) / 2 * 2; };
  Words at{};
  at.between = at.x + even(n.D / 2);
  at.y = at.between + even(n.D / 2);
  at.scores = at.y + even(n.projections() / 2);
  at.o = at.scores + even(n.H * n.M);
  at.squares = at.o + even(n.H * n.V / 2);
  at.hidden = at.squares + even(n.H * n.value_parts());
  at.of_layer = at.hidden + even(n.F / 2);
  return at;
}

}  // namespace cyfa::whole_step
