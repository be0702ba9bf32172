// One pass over memory for a whole word: every block of a part is loaded once, taken through all the linear
// letters of the word with its noise made on the spot, and stored once. build.py compiles this file on first
// use; noise.py (the streams) and sums.py (the letters) hold the same mathematics in Python.

#ifndef REAL
#include "kernel.h"

typedef struct {
  int64_t tensors, rows, blocks, ops, each;  // rows: replicas that a tensor holds; each: have they ops of their own?
  void *const *theta, *const *p, *const *g;
  const int64_t *size;   // of one replica
  const uint64_t *lane;  // the numbers of the replicas plus one; null where there are none
  const Op *op;          // rows × ops, or ops
  const uint64_t *key;   // draws × blocks × 3
} Task;

// What native/__init__.py takes for granted, and what was built: it compares, and tells.
void abi(int64_t facts[8]) {
  int64_t level = 0;  // x86-64-v1 to v4; 0 elsewhere
#ifdef __x86_64__
  level = 1;
#if CLONED
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) level = 3;
  if (level == 3 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) level = 4;
#elif defined(__AVX512BW__) && defined(__AVX512VL__)
  level = 4;
#elif defined(__AVX2__)
  level = 3;
#elif defined(__SSE4_2__)
  level = 2;
#endif
#endif
#ifdef _OPENMP
  const int64_t parallel = 1;
#else
  const int64_t parallel = 0;
#endif
  const int64_t known[8] = {sizeof(Op), BLOCK, CHUNK, DRAWS, DEPTH, parallel, CLONED, level};
  memcpy(facts, known, sizeof known);
}

// Can these ops run on what there is? `targets` are known to the kernel; `drift`: target 1 moves along p always.
static int64_t sound(const Op *op, int64_t ops, int64_t targets, int drift, const void *p, const void *g, int64_t draws) {
  for (int64_t o = 0; o < ops; o++) {
    const Op x = op[o];
    if (x.target < 0 || x.target >= targets || x.draw < -1 || x.draw >= DRAWS || x.draw >= draws) return BAD_OP;
    if (x.R != 0 && x.draw < 0) return BAD_OP;
    if (!p && (x.target == 0 || x.p != 0 || (drift && x.target == 1))) return NO_BUFFER;
    if (!g && x.g != 0) return NO_BUFFER;
  }
  return FINE;
}

// SFC64 by Chris Doty-Humphrey, as in numpy; started at a hashed name with the counter at 1.
static void words(Raw *out, int64_t n, uint64_t s[4]) {
  uint64_t a = s[0], b = s[1], c = s[2], counter = s[3];
  for (int64_t i = 0; i < n; i++) {
    uint64_t r = a + b + counter++;
    a = b ^ (b >> 11);
    b = c + (c << 3);
    c = ((c << 24) | (c >> 40)) + r;
    out[i] = r;
  }
  s[0] = a; s[1] = b; s[2] = c; s[3] = counter;
}

// The stream of a draw; replicas share its name and start apart, with the rounds that mix them thrown away.
static void start(uint64_t s[4], const uint64_t *key, uint64_t lane) {
  uint64_t thrown[12];
  memcpy(s, key, 24);
  s[3] = 1;
  if (!lane) return;
  s[2] += lane * 0x9E3779B97F4A7C15u;
  words(thrown, 12, s);
}

// A permutation of the points for each replica, by Fisher and Yates: i ← swapped with ⌊u (i + 1)⌋, u of 32 bits.
int64_t shuffle(int64_t rows, int64_t points, const uint64_t *key, const uint64_t *lane, int64_t *out) {
  if (!out && rows * points > 0) return NO_BUFFER;
  for (int64_t row = 0; row < rows; row++, out += points) {
    uint64_t state[4], raw[64];
    start(state, key, lane ? lane[row] : 0);
    for (int64_t i = 0; i < points; i++) out[i] = i;
    for (int64_t i = points - 1, k = 0; i > 0; i--, k = (k + 1) % 64) {
      if (k == 0) words(raw, 64, state);
      const int64_t j = (int64_t)(((raw[k] >> 32) * (uint64_t)(i + 1)) >> 32), held = out[i];
      out[i] = out[j];
      out[j] = held;
    }
  }
  return FINE;
}

#define REAL float
#define SIGNED int32_t
#define BITS uint32_t
#define MANTISSA 23
#define BIAS 127
#define TERMS 5
#define ROOT sqrtf
#define SUFFIX _f32
#include "native.c"
#undef REAL
#undef SIGNED
#undef BITS
#undef MANTISSA
#undef BIAS
#undef TERMS
#undef ROOT
#undef SUFFIX
#define REAL double
#define SIGNED int64_t
#define BITS uint64_t
#define MANTISSA 52
#define BIAS 1023
#define TERMS 10
#define ROOT sqrt
#define SUFFIX _f64
#include "native.c"

#else

#include "noise.c"

CLONES static void NAME(block)(REAL *theta, REAL *p, const REAL *g, int64_t n, const Task *task, int64_t row,
                               int64_t block) {
  _Alignas(64) REAL R[CHUNK];
  uint64_t state[DRAWS][4];
  const Op *table = task->op + (task->each ? row * task->ops : 0);
  const uint64_t lane = task->lane ? task->lane[row] : 0;
  for (int64_t o = 0; o < task->ops; o++) {
    int64_t draw = table[o].draw;
    if (draw >= 0) start(state[draw], task->key + 3 * (draw * task->blocks + block), lane);
  }
  for (int64_t at = 0; at < n; at += CHUNK) {
    int64_t m = n - at < CHUNK ? n - at : CHUNK, held = -1;
    for (int64_t o = 0; o < task->ops; o++) {
      const Op op = table[o];
      if (op.draw >= 0 && op.draw != held) {
        NAME(normals)(R, m, state[op.draw]);
        held = op.draw;
      }
      REAL *x = (op.target ? theta : p) + at;
      const REAL own = (REAL)op.own, cp = (REAL)op.p, cg = (REAL)op.g, cR = (REAL)op.R;
      if (op.own == 0) for (int64_t i = 0; i < m; i++) x[i] = 0;
      else if (op.own != 1) for (int64_t i = 0; i < m; i++) x[i] *= own;
      if (op.p != 0) for (int64_t i = 0; i < m; i++) x[i] += cp * p[at + i];
      if (op.g != 0) for (int64_t i = 0; i < m; i++) x[i] += cg * g[at + i];
      if (op.R != 0) for (int64_t i = 0; i < m; i++) x[i] += cR * R[i];
    }
  }
}

static void NAME(share)(const Task *task, int64_t thread, int64_t threads) {
  // where there are rows enough a thread takes neighbouring ones, the same in every call: they stay in its cache
  const int apart = task->rows >= threads;
  const int64_t from_row = apart ? task->rows * thread / threads : 0;
  const int64_t to_row = apart ? task->rows * (thread + 1) / threads : task->rows;
  int64_t turn = 0, first = 0;
  FLUSH
  for (int64_t t = 0; t < task->tensors; t++) {
    const int64_t size = task->size[t];
    for (int64_t row = from_row; row < to_row; row++)
      for (int64_t at = 0; at < size; at += BLOCK, turn++)
        if (apart || turn % threads == thread) {
          const int64_t n = size - at < BLOCK ? size - at : BLOCK, from = row * size + at;
          REAL *theta = task->theta ? (REAL *)task->theta[t] + from : 0, *p = task->p ? (REAL *)task->p[t] + from : 0;
          NAME(block)(theta, p, task->g ? (REAL *)task->g[t] + from : 0, n, task, row, first + at / BLOCK);
        }
    first += (size + BLOCK - 1) / BLOCK;
  }
  RESTORE
}

int64_t NAME(run)(int64_t tensors, int64_t rows, void *const *theta, void *const *p, void *const *g, const int64_t *size,
                  const uint64_t *lane, int64_t blocks, int64_t ops, int64_t each, const Op *op, const uint64_t *key,
                  int64_t keys, int64_t threads) {
  const Task task = {tensors, rows, blocks, ops, each, theta, p, g, size, lane, op, key};
  if (each && each != rows) return BAD_SIZE;
  const int64_t fault = sound(op, ops * (each ? each : 1), theta ? 2 : 1, 0, p, g, blocks ? keys / blocks : DRAWS);
  if (fault) return fault;
#pragma omp parallel num_threads(threads) if (threads > 1)
  NAME(share)(&task, omp_get_thread_num(), omp_get_num_threads());
  return FINE;
}

// A number that is not finite has all bits of its exponent set.
CLONES static int NAME(infinite)(const REAL *x, int64_t n) {
  const BITS exponent = (BITS)(2 * BIAS + 1) << MANTISSA;
  BITS bad = 0;
  for (int64_t i = 0; i < n; i++) {
    BITS bits;
    memcpy(&bits, x + i, sizeof bits);
    bad |= (BITS)((bits & exponent) == exponent);
  }
  return bad != 0;
}

// 1 if every number is finite, else 0
int64_t NAME(finite)(int64_t tensors, void *const *x, const int64_t *size, int64_t threads) {
  int bad = 0;
  for (int64_t t = 0; t < tensors; t++) {
    const REAL *from = x[t];
    const int64_t blocks = (size[t] + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) if (threads > 1 && blocks > 1) reduction(| : bad)
    for (int64_t i = 0; i < blocks; i++)
      bad |= NAME(infinite)(from + i * BLOCK, size[t] - i * BLOCK < BLOCK ? size[t] - i * BLOCK : BLOCK);
  }
  return !bad;
}

#include "bounded.c"
#include "stiefel.c"
#include "mlp.c"
#include "path.c"
#include "kinks.c"

#endif
