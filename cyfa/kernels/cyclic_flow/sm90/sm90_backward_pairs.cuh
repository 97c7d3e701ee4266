// The common part of the key and value pass of the Hopper backward: token-token pairs and the reductions of dphi, one half tile per
// warpgroup. Notation of sm90_backward_pass.cuh. Included by sm90_backward_keys.cu and sm90_backward_values.cu. Writes written, crossing,
// earlier, turned and beta of the pass to the workspace.
#pragma once

#include <type_traits>

#include "cyfa/kernels/cyclic_flow/sm90/sm90_backward_pass.cuh"

namespace cyfa::cyclic_flow::sm90_backward_stages {

// phi = U(-clock) b of two rows as A operand; and psi, with <psi, d> = X(phi, d) / (2 pi / m). kFirst: for the first section, whose
// frequencies start at zero; a separate instantiation because of register pressure.
template <bool kFirst>
__device__ __forceinline__ void write_vectors(uint32_t turn0, uint32_t turn8, uint32_t thread, const Slots& slots, uint32_t (&phi)[8][4],
                                              uint32_t (&psi)[8][4]) {
  const int q = (kFirst ? 0 : slots.first_pair) + static_cast<int>(thread % 4);
  const float norm = slots.paired;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float slope = fmaf(static_cast<float>(q), norm, norm * static_cast<float>(4 * i));
    float s0, c0, s8, c8;
    phase(turn0, 4 * i + q, s0, c0);
    phase(turn8, 4 * i + q, s8, c8);
    phi[i / 2][i % 2 * 2] = pack_here(norm * c0, -norm * s0);
    phi[i / 2][i % 2 * 2 + 1] = pack_here(norm * c8, -norm * s8);
    psi[i / 2][i % 2 * 2] = pack_here(slope * s0, slope * c0);
    psi[i / 2][i % 2 * 2 + 1] = pack_here(slope * s8, slope * c8);
  }
  if (q == 0) phi[0][0] = phi[0][1] = pack(slots.constant, 0.0F);
}

// <phi, d> of both rows of a 64 x 128 accumulator, and X(phi, d) / (2 pi / m), with phi as rounded for the products.
struct WriteTerms {
  float along0 = 0.0F, along8 = 0.0F, slope0 = 0.0F, slope8 = 0.0F;

  // of_pair(i) is the frequency of the thread's i-th pair of 16.
  template <typename Frequency>
  __device__ __forceinline__ WriteTerms(const float (&d)[64], const uint32_t (&phi)[8][4], const Frequency& of_pair) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 x0 = unpack(phi[i / 2][i % 2 * 2]);
      const float2 x8 = unpack(phi[i / 2][i % 2 * 2 + 1]);
      const float j = of_pair(i);
      along0 = fmaf(x0.x, d[4 * i], fmaf(x0.y, d[4 * i + 1], along0));
      along8 = fmaf(x8.x, d[4 * i + 2], fmaf(x8.y, d[4 * i + 3], along8));
      slope0 = fmaf(j, x0.x * d[4 * i + 1] - x0.y * d[4 * i], slope0);
      slope8 = fmaf(j, x8.x * d[4 * i + 3] - x8.y * d[4 * i + 2], slope8);
    }
    along0 = quad_sum(along0);
    along8 = quad_sum(along8);
    slope0 = quad_sum(slope0);
    slope8 = quad_sum(slope8);
  }
};
// Uses other instructions than unpack: otherwise the compiler widens phi once and keeps the result.
__device__ __forceinline__ float2 unpack_again(uint32_t x) {
  return make_float2(__uint_as_float(__byte_perm(x, 0, 0x1044)), __uint_as_float(__byte_perm(x, 0, 0x3244)));
}

// A wgmma with 32 columns, like those of sm90/wgmma.cuh.
__device__ __forceinline__ void wgmma_32(float (&d)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

// This thread's part of the sums over pairs of two rows.
struct RowSums {
  float along0 = 0.0F, along8 = 0.0F;  // <phi, dphi>
  float slope0 = 0.0F, slope8 = 0.0F;  // X(phi, dphi) / (2 pi / m)
};

// 64 tokens s by 64 tokens t. Given big = x y^T, computes small = phi z^T and psi z^T. Converts f * small times the decay from s to t >= s
// to the next A operand. Accumulates per row the sums of big * decay * small and of big * decay * (psi z^T), and per column, over the
// warp's rows, the sum of f * big * decay * small. Contributions of pairs to gates and clocks thus use big in fp32. The decay is a product
// of three factors, none above 1: to the end of the warp's strip of s, from there to the first token of a block of 16 t, from there to t.
// Tokens t are in the same half tile as s (kOwn) or in the later one.
template <bool kOwn, typename Leave>
__device__ __forceinline__ void decay_pairs(const float (&big)[32], const uint32_t (&phi)[8][4], const uint32_t (&psi)[8][4],
                                            uint32_t place_of_z, int row, int first, float f0, float f8, const Tokens& s,
                                            uint32_t (&a_small)[4][4], RowSums& sums, const Leave& leave) {
  const int q = threadIdx.x % 4;
  const int strip = row & ~15;
  const float to_last0 = power_of_2(s.fall[strip + 15] - s.fall[row]);
  const float to_last8 = power_of_2(s.fall[strip + 15] - s.fall[row + 8]);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float small[16], turned[16];  // 32 columns at a time because of register pressure
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_32(small, phi[kk], columns_of(place_of_z, 32 * half * kRowBytes, 16 * kk), kk > 0);
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma_32(turned, psi[kk], columns_of(place_of_z, 32 * half * kRowBytes, 16 * kk), kk > 0);
    wgmma_commit();
    wgmma_wait<0>();
    float column[8];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int block = 2 * half + b;
      const int t0 = first + kBlock * block;
      float decay[8];
      if (!kOwn || t0 > strip) {
        const float between = power_of_2(fminf(s.between_blocks(t0, strip) - s.fall[strip + 15], 0.0F));
        const float e0 = to_last0 * between;
        const float e8 = to_last8 * between;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 c = *reinterpret_cast<const float2*>(&s.rise[t0 + 8 * n + 2 * q]);
          decay[4 * n] = e0 * c.x;
          decay[4 * n + 1] = e0 * c.y;
          decay[4 * n + 2] = e8 * c.x;
          decay[4 * n + 3] = e8 * c.y;
        }
      } else if (t0 == strip) {
        const float fall0 = s.fall[row];
        const float fall8 = s.fall[row + 8];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int t = t0 + 8 * n + 2 * q;
          const float2 fall = *reinterpret_cast<const float2*>(&s.fall[t]);
          decay[4 * n] = power_of_2(t >= row ? fall.x - fall0 : -INFINITY);
          decay[4 * n + 1] = power_of_2(t + 1 >= row ? fall.y - fall0 : -INFINITY);
          decay[4 * n + 2] = power_of_2(t >= row + 8 ? fall.x - fall8 : -INFINITY);
          decay[4 * n + 3] = power_of_2(t + 1 >= row + 8 ? fall.y - fall8 : -INFINITY);
        }
      } else {
#pragma unroll
        for (int n = 0; n < 8; ++n) decay[n] = 0.0F;
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* x = big + 8 * block + 4 * n;
        const float* y = small + 8 * b + 4 * n;
        const float* z = turned + 8 * b + 4 * n;
        const float* e = decay + 4 * n;
        const float x00 = x[0] * e[0], x01 = x[1] * e[1], x80 = x[2] * e[2], x81 = x[3] * e[3];
        const float y00 = y[0] * f0, y01 = y[1] * f0, y80 = y[2] * f8, y81 = y[3] * f8;
        sums.along0 = fmaf(x00, y[0], fmaf(x01, y[1], sums.along0));
        sums.along8 = fmaf(x80, y[2], fmaf(x81, y[3], sums.along8));
        sums.slope0 = fmaf(x00, z[0], fmaf(x01, z[1], sums.slope0));
        sums.slope8 = fmaf(x80, z[2], fmaf(x81, z[3], sums.slope8));
        column[4 * b + 2 * n] = fmaf(x00, y00, x80 * y80);
        column[4 * b + 2 * n + 1] = fmaf(x01, y01, x81 * y81);
        a_small[block][2 * n] = pack_here(y00 * e[0], y01 * e[1]);
        a_small[block][2 * n + 1] = pack_here(y80 * e[2], y81 * e[3]);
      }
    }
    leave(half, sum_lanes(column));
  }
}

// Results for a warp's 16 tokens s that dx needs.
struct Pairs {
  uint32_t phi[8][4];                // times f and the decay to the tile's end
  uint32_t own[4][4];                // f D * (phi z^T) as A operand: tokens t of the same half,
  uint32_t other[4][4];              // and, for the first half, of the second
  float coefficient0, coefficient8;  // <x, dx> of both rows; in the key pass times rk^2
};

// One half tile, 64 tokens, by one warpgroup. Both halves run the same code, rolled over panels, to limit instruction fetch.
template <Pass kPass, bool kFirst, int kPanels>
struct HalfTile {
  static constexpr int kWidth = kPanels * kPanelColumns;
  const PassParams& params;
  PassShared& s;
  const int half;
  const int strip;      // this warp's 16 rows
  const int row;        // and row + 8
  const uint32_t ring;  // shared memory address of the buffers

  __device__ __forceinline__ HalfTile(const PassParams& all, PassShared& shared, int token, int tokens, int count, int which)
      : params(all),
        s(shared),
        half(which),
        strip(4 * which + static_cast<int>(threadIdx.x) / 32 % 4),
        row(16 * strip + static_cast<int>(threadIdx.x) % 32 / 4),
        ring(anew(shared_address(shared.ring))) {  // anew: otherwise operand descriptors are kept across tiles
    __syncwarp();
    if (threadIdx.x % 32 == 0) s.place[threadIdx.x / 32 - 4] = {token, tokens, Share(all.p).h, count};
    __syncwarp();
  }

  // In the key pass opaque to the compiler: otherwise values that depend only on it are kept in registers across tiles.
  __device__ __forceinline__ uint32_t thread() const { return kPass == kKeys ? anew(threadIdx.x) : threadIdx.x; }
  // Frequencies of the thread's pairs. The type of the addition is chosen per pass to avoid register spills.
  __device__ __forceinline__ auto frequency() const {
    using Number = std::conditional_t<kPass == kKeys && !kFirst, float, int>;
    return [q = static_cast<Number>(thread() % 4), &slots = params.w.slots](int i) {
      const float j = static_cast<float>(static_cast<Number>(4 * i) + q);
      return kFirst ? j : slots.first + j;
    };
  }
  __device__ __forceinline__ uint32_t place() const { return shared_address(&s.place[anew(threadIdx.x) / 32 - 4]); }
  __device__ __forceinline__ int token() const { return static_cast<int>(load_shared(place())); }
  __device__ __forceinline__ int tokens() const { return static_cast<int>(load_shared(place() + 4)); }
  __device__ __forceinline__ int h() const { return static_cast<int>(load_shared(place() + 8)); }
  __device__ __forceinline__ int n() const { return static_cast<int>(load_shared(place() + 12)); }
  __device__ __forceinline__ uint32_t panel_at(int place) const { return ring + place * kPanelBytes; }
  __device__ __forceinline__ uint32_t operand_at(int place) const { return (ring >> 4) + place * (kPanelBytes >> 4); }
  __device__ __forceinline__ bool valid0() const { return row < tokens(); }
  __device__ __forceinline__ bool valid8() const { return row + 8 < tokens(); }
  __device__ __forceinline__ int64_t scalars() const { return h() * params.p.in.T + token() + row; }
  // Index of the strip's first row in an array [T, H, kWidth].
  __device__ __forceinline__ int64_t first_row() const {
    return (static_cast<int64_t>(token() + 16 * strip) * params.p.in.H + h()) * kWidth;
  }
  __device__ __forceinline__ void put(float* to, float of_row0, float of_row8) const {
    const bool first = threadIdx.x % 4 == 0;
    if (first && valid0()) to[scalars()] = of_row0;
    if (first && valid8()) to[scalars() + 8] = of_row8;
  }
  __device__ __forceinline__ void release(int place) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(&s.empty[place]);
  }
  // Buffers that are filled twice per tile have a fixed parity for each use.
  __device__ __forceinline__ void wait_first(int place) const {
    const bool twice = kPass == kKeys ? place == kS || place == kS + 1 || (kPanels == 4 && place >= kZ) : kPanels == 4 && place == kX;
    barrier_wait(&s.full[place], twice ? 0 : n() & 1);
  }
  __device__ __forceinline__ void wait_second(int place) const { barrier_wait(&s.full[place], 1); }

  // Clears rows past the tile's end, which belong to another sequence: 0 * inf would be NaN.
  __device__ __forceinline__ void clear_rows(int place) const {
    for (int i = tokens() * 8 + static_cast<int>(threadIdx.x) - 128; i < kC * 8; i += 256) {
      *reinterpret_cast<uint4*>(s.ring + place * kPanelBytes + 16 * i) = make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void cleared() const {
    fence_async_proxy();
    named_barrier(1, 256);
  }

  // Loads 64 columns of x as A operand; in the key pass multiplied by both norm weights.
  __device__ __forceinline__ void load_x(uint32_t (&x)[4][4], int panel) const {
    if (kPass == kValues && kPanels == 4 && panel == 3) {  // three buffers for four panels
      wait_second(kX);
      if (tokens() < kC) {
        named_barrier(1, 256);  // both warpgroups have read the buffer's first panel
        clear_rows(kX);
        cleared();
      }
      load_strip(x, panel_at(kX), strip);
    } else {
      wait_first(kX + panel);
      load_strip(x, panel_at(kX + panel), strip);
    }
    if constexpr (kPass == kKeys) {
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = panel * kPanelColumns + 16 * kk + 8 * (i / 2) + 2 * static_cast<int>(threadIdx.x % 4);
          const float2 g = *reinterpret_cast<const float2*>(&s.weight[column]);
          const float2 f = unpack(x[kk][i]);
          x[kk][i] = pack(f.x * g.x, f.y * g.y);
        }
      }
    }
  }

  // Calls leave(i, sum) with the warp's column sums over pairs, for column 32 i + column_of_lane(): its own half tile (i = 0, 1), then
  // the later one (i = 2, 3).
  template <typename Leave>
  __device__ __forceinline__ void pairs(Pairs& found, const Leave& leave) const {
    const Sm90BackwardParams& p = params.p;
    const Workspace& w = params.w;
    if (tokens() < kC) {
      for (int place = 0; place < kPlaces; ++place) {
        if ((place >= kS && place < kZ) || (kPass == kValues && place == kX + 3)) continue;
        if (place < kZ && place % 4 >= kPanels) continue;
        wait_first(place);
        clear_rows(place);
      }
      cleared();
    }
    const uint32_t turn0 = valid0() ? w.turn[scalars()] : 0;
    const uint32_t turn8 = valid8() ? w.turn[scalars() + 8] : 0;
    // x y^T and x dS'^T, 64 columns at a time.
    float d_phi[64] = {};
    float own[32] = {}, other[32] = {};
    {
      uint32_t x[4][4], next[4][4];
      load_x(x, 0);
#pragma unroll 1
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint32_t place = operand_at(panel);
        wait_first(kY + panel);
        wait_first(kS + panel);
        settle(x);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) wgmma<0>(d_phi, x[kk], columns_of(place, kS * kPanelBytes, 16 * kk), 1);
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) wgmma<0>(own, x[kk], columns_of(place + half * kHalfRows, kY * kPanelBytes, 16 * kk), 1);
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) wgmma<0>(other, x[kk], columns_of(place + kHalfRows, kY * kPanelBytes, 16 * kk), 1);
        wgmma_commit();
        // Only now: the wgmmas wait for the ldmatrix loads of x, so these have finished reading the buffer.
        if (kPass == kValues && panel != 2) release(panel == 3 ? kX : kX + panel);
        if (panel + 1 < kPanels) load_x(next, panel + 1);
        wgmma_wait<0>();
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
          for (int i = 0; i < 4; ++i) x[kk][i] = next[kk][i];
        }
      }
    }
    // Loaded before the write vectors are computed, used afterwards.
    float f0 = 0.0F, f8 = 0.0F;
    {
      const float* beta = p.in.beta + static_cast<int64_t>(token() + row) * p.in.H + h();
      if (valid0()) f0 = beta[0];
      if (valid8()) f8 = beta[8 * p.in.H];
      if (kPass == kKeys) {
        if (valid0()) f0 *= w.rate[0][scalars()];
        if (valid8()) f8 *= w.rate[0][scalars() + 8];
      }
    }
    uint32_t(&phi)[8][4] = found.phi;
    barrier_wait(&s.tokens_full, n() & 1);
    uint32_t psi[8][4];
    write_vectors<kFirst>(turn0, turn8, thread(), w.slots, phi, psi);

    // Contributions of the tile's end state.
    settle(phi);
    settle(psi);
    settle(d_phi);
    scale_rows(d_phi, s.tokens.to_end(row), s.tokens.to_end(row + 8));
    const WriteTerms of_end(d_phi, phi, frequency());
    put(w.written[kPass], f0 * of_end.along0, f8 * of_end.along8);
    put(w.crossing[kPass], w.slots.turn * f0 * of_end.slope0, w.slots.turn * f8 * of_end.slope8);
    settle(phi);
    settle(psi);

    // Pairs with tokens t of the same half, then of the second half, which come after all tokens of the first.
    wait_first(kZ);
    wait_first(kZ + 1);
    const uint32_t z = operand_at(kZ);
    RowSums sums;
    decay_pairs<true>(own, phi, psi, z + half * kHalfRows, row, 64 * half, f0, f8, s.tokens, found.own, sums, leave);
    if (half == 0) {
      decay_pairs<false>(other, phi, psi, z + kHalfRows, row, 64, f0, f8, s.tokens, found.other, sums,
                         [&](int i, float sum) { leave(2 + i, sum); });
    } else {
#pragma unroll
      for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
        for (int i = 0; i < 4; ++i) found.other[kk][i] = 0;
      }
    }
    float along0 = quad_sum(sums.along0);
    float along8 = quad_sum(sums.along8);
    put(w.earlier[kPass], f0 * along0, f8 * along8);
    put(w.turned[kPass], w.slots.turn * f0 * (quad_sum(sums.slope0) + of_end.slope0),
        w.slots.turn * f8 * (quad_sum(sums.slope8) + of_end.slope8));
    along0 += of_end.along0;
    along8 += of_end.along8;
    float rate0 = 1.0F, rate8 = 1.0F;  // loaded again because of register pressure
    if (kPass == kKeys) {
      if (valid0()) rate0 = w.rate[0][scalars()];
      if (valid8()) rate8 = w.rate[0][scalars() + 8];
    }
    put(w.beta[kPass], rate0 * along0, rate8 * along8);
    found.coefficient0 = f0 * along0 * rate0 * rate0;
    found.coefficient8 = f8 * along8 * rate8 * rate8;
    settle(phi);
    f0 *= s.tokens.to_end(row);
    f8 *= s.tokens.to_end(row + 8);
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&s.tokens_empty);
#pragma unroll
    for (int kk = 0; kk < 8; ++kk) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack_again(phi[kk][i]);
        const float f = i % 2 == 0 ? f0 : f8;
        phi[kk][i] = pack_here(f * x.x, f * x.y);
      }
    }
    settle(phi);
    settle(found.own);
    settle(found.other);
  }

  // Starts the products for 64 columns of dx.
  __device__ __forceinline__ void multiply(float (&d)[32], const Pairs& found, int panel) const {
    const uint32_t place = operand_at(panel);
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kM / 16; ++kk) wgmma<1>(d, found.phi[kk], rows_of(place, kS * kPanelBytes, 16 * kk), kk > 0);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) wgmma<1>(d, found.own[kk], rows_of(place + half * kHalfRows, kY * kPanelBytes, 16 * kk), 1);
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) wgmma<1>(d, found.other[kk], rows_of(place + kHalfRows, kY * kPanelBytes, 16 * kk), 1);
    wgmma_commit();
  }
};

}  // namespace cyfa::cyclic_flow::sm90_backward_stages
