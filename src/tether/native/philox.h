// Included by native.c: Philox 4×32-10, the eight counters of a tile at a time. noise.py says what the words are for.
//
// Each word of 32 bits lies in a lane of 64: a multiplication reads the lower half of a lane and fills both, so nothing
// is masked, and the upper halves of the other words may hold anything. Several vectors are in flight, since each
// round waits for the products of the one before. Compilers do not find this in a plain loop, so it is written out
// for AVX2 and AVX-512; integers are exact, so the words do not depend on the choice.

// SPAN: entries whose noise is made at once. More would keep memory waiting while noise is made, and the other way round.
enum { TILE = 32, LANES = 8, TILES = 16, SPAN = TILES * TILE, ROUNDS = 10 };
#define MUL0 0xD2511F53u
#define MUL1 0xCD9E8D57u
#define ADD0 0x9E3779B9u
#define ADD1 0xBB67AE85u

// 32 entries of a parameter: words 0 and 3 of their first counter, and the key
typedef struct { uint32_t n, high, key[2]; } Tile;

// Where words go: words 0 and 2 of a tile's counters one `half` apart, and words 1 and 3 by `odd` behind those.
typedef struct { int64_t half, odd; } Order;
static const Order BY_ENTRY = {2 * LANES, LANES}, BY_KIND = {LANES, SPAN / 2};  // of radii first, then of angles

static void philox_plain(uint32_t *restrict out, Order to, const Tile *tile, int64_t tiles, uint32_t step, uint32_t draw) {
  for (int64_t t = 0; t < tiles; t++, out += 2 * to.half)
    for (uint32_t lane = 0; lane < LANES; lane++) {
      uint32_t a = tile[t].n + lane, b = step, c = draw, d = tile[t].high, j = tile[t].key[0], k = tile[t].key[1];
#pragma GCC unroll 10
      for (int round = 0; round < ROUNDS; round++, j += ADD0, k += ADD1) {
        const uint64_t x = (uint64_t)a * MUL0, y = (uint64_t)c * MUL1;
        a = (uint32_t)(y >> 32) ^ b ^ j, b = (uint32_t)y;
        c = (uint32_t)(x >> 32) ^ d ^ k, d = (uint32_t)x;
      }
      out[lane] = a, out[to.odd + lane] = b, out[to.half + lane] = c, out[to.half + to.odd + lane] = d;
    }
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define ROUND(P, V, S)                                                                \
  {                                                                                   \
    const V x = P##_mul_epu32(a##S, m0), y = P##_mul_epu32(c##S, m1);                 \
    a##S = XOR(XOR(P##_srli_epi64(y, 32), b##S), j##S), b##S = y;                     \
    c##S = XOR(XOR(P##_srli_epi64(x, 32), d##S), k##S), d##S = x;                     \
  }
#define BUMP(P, S) j##S = P##_add_epi32(j##S, w0), k##S = P##_add_epi32(k##S, w1);

#define XOR _mm512_xor_si512
#define START(S, T)                                                                                              \
  __m512i a##S = _mm512_add_epi64(_mm512_set1_epi64((T)->n), lanes), b##S = _mm512_set1_epi64(step),             \
          c##S = _mm512_set1_epi64(draw), d##S = _mm512_set1_epi64((T)->high),                                   \
          j##S = _mm512_set1_epi64((T)->key[0]), k##S = _mm512_set1_epi64((T)->key[1]);
#define STORE(S, T)                                                                                            \
  _mm256_storeu_si256((__m256i *)(out + 2 * to.half * (T)), _mm512_cvtepi64_epi32(a##S));                      \
  _mm256_storeu_si256((__m256i *)(out + 2 * to.half * (T) + to.odd), _mm512_cvtepi64_epi32(b##S));             \
  _mm256_storeu_si256((__m256i *)(out + 2 * to.half * (T) + to.half), _mm512_cvtepi64_epi32(c##S));            \
  _mm256_storeu_si256((__m256i *)(out + 2 * to.half * (T) + to.half + to.odd), _mm512_cvtepi64_epi32(d##S));

__attribute__((target("avx512f"))) static void philox_avx512(uint32_t *out, Order to, const Tile *tile, int64_t tiles,
                                                             uint32_t step, uint32_t draw) {
  const __m512i lanes = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), m0 = _mm512_set1_epi64(MUL0),
                m1 = _mm512_set1_epi64(MUL1), w0 = _mm512_set1_epi64(ADD0),
                w1 = _mm512_set1_epi64(ADD1);
  for (int64_t t = 0; t < tiles; t += 4) {
    const int64_t last = tiles - 1, u = t + 1 < last ? t + 1 : last, v = t + 2 < last ? t + 2 : last,
                  w = t + 3 < last ? t + 3 : last;  // the last one is made again where there is none
    START(0, tile + t)
    START(1, tile + u)
    START(2, tile + v)
    START(3, tile + w)
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++) {
      ROUND(_mm512, __m512i, 0)
      ROUND(_mm512, __m512i, 1)
      ROUND(_mm512, __m512i, 2)
      ROUND(_mm512, __m512i, 3)
      BUMP(_mm512, 0)
      BUMP(_mm512, 1)
      BUMP(_mm512, 2)
      BUMP(_mm512, 3)
    }
    STORE(0, t)
    STORE(1, u)
    STORE(2, v)
    STORE(3, w)
  }
}
#undef XOR
#undef START
#undef STORE

// Lanes 0 1 4 5 in one register and 2 3 6 7 in the other: so a shuffle within halves puts their words in order.
#define XOR _mm256_xor_si256
#define START(S, lanes)                                                                        \
  __m256i a##S = _mm256_add_epi64(_mm256_set1_epi64x(tile[t].n), lanes), b##S = _mm256_set1_epi64x(step), \
          c##S = _mm256_set1_epi64x(draw), d##S = _mm256_set1_epi64x(tile[t].high);
#define PACK(x, y) \
  _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y), _MM_SHUFFLE(2, 0, 2, 0)))

__attribute__((target("avx2"))) static void philox_avx2(uint32_t *out, Order to, const Tile *tile, int64_t tiles,
                                                        uint32_t step, uint32_t draw) {
  const __m256i first = _mm256_set_epi64x(5, 4, 1, 0), second = _mm256_set_epi64x(7, 6, 3, 2),
                m0 = _mm256_set1_epi64x(MUL0), m1 = _mm256_set1_epi64x(MUL1),
                w0 = _mm256_set1_epi64x(ADD0), w1 = _mm256_set1_epi64x(ADD1);
  for (int64_t t = 0; t < tiles; t++, out += 2 * to.half) {
    __m256i j0 = _mm256_set1_epi64x(tile[t].key[0]), k0 = _mm256_set1_epi64x(tile[t].key[1]);
    START(0, first)
    START(1, second)
#define j1 j0
#define k1 k0
#pragma GCC unroll 10
    for (int round = 0; round < ROUNDS; round++) {
      ROUND(_mm256, __m256i, 0)
      ROUND(_mm256, __m256i, 1)
      BUMP(_mm256, 0)
    }
#undef j1
#undef k1
    _mm256_storeu_si256((__m256i *)out, PACK(a0, a1));
    _mm256_storeu_si256((__m256i *)(out + to.odd), PACK(b0, b1));
    _mm256_storeu_si256((__m256i *)(out + to.half), PACK(c0, c1));
    _mm256_storeu_si256((__m256i *)(out + to.half + to.odd), PACK(d0, d1));
  }
}
#undef XOR
#undef START
#undef PACK
#undef ROUND
#undef BUMP
#endif

// Which of them: 0 plain, 1 AVX2, 2 AVX-512; the best that the machine, or a PLAIN build, has.
static int64_t philox_best(void) {
#if defined(PLAIN) || !defined(__x86_64__) || !defined(__GNUC__)
#if defined(__AVX512F__)
  return 2;
#elif defined(__AVX2__)
  return 1;
#else
  return 0;
#endif
#else
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") ? 2 : __builtin_cpu_supports("avx2") ? 1 : 0;
#endif
}

static void philox(int64_t level, uint32_t *out, Order to, const Tile *tile, int64_t tiles, uint32_t step, uint32_t draw) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (level == 2) return philox_avx512(out, to, tile, tiles, step, draw);
  if (level == 1) return philox_avx2(out, to, tile, tiles, step, draw);
#endif
  philox_plain(out, to, tile, tiles, step, draw);
}

// The tile of entry e of a parameter
static inline Tile tile_of(uint64_t e, uint64_t key, uint32_t replica) {
  const uint64_t n = e / TILE * LANES;
  return (Tile){(uint32_t)n, replica | (uint32_t)(n >> 32) << 24, {(uint32_t)key, (uint32_t)(key >> 32)}};
}

// The words of `count` entries from entry `first` on
static void philox_range(int64_t level, uint32_t *out, int64_t first, int64_t count, uint64_t key, uint32_t replica,
                         uint32_t step, uint32_t draw) {
  uint32_t word[SPAN];
  Tile tile[TILES];
  while (count > 0) {
    const int64_t phase = first % TILE, m = count < SPAN - phase ? count : SPAN - phase;
    const int64_t tiles = (phase + m + TILE - 1) / TILE;
    for (int64_t t = 0; t < tiles; t++) tile[t] = tile_of((uint64_t)(first + t * TILE), key, replica);
    philox(level, word, BY_ENTRY, tile, tiles, step, draw);
    memcpy(out, word + phase, (size_t)m * sizeof *out);
    out += m, first += m, count -= m;
  }
}
