// One pass over memory for a whole word: every block of a part is loaded once, taken through all the linear
// letters of the word with its noise made on the spot, and stored once. build.py compiles this file on first
// use; noise.py (the streams) and sums.py (the letters) hold the same mathematics in Python.

#ifndef REAL
#include "kernel.h"

#include "philox.h"

typedef struct {
  int64_t tensors, rows, ops, each;  // rows: replicas that a tensor holds; each: have they ops of their own?
  void *const *theta, *const *p, *const *g;
  const int64_t *size, *first;  // of one replica; the index of its first entry in the whole parameter, null for 0
  const int64_t *replica;       // the numbers of the replicas; null for 0
  const Op *op;                 // rows × ops, or ops
  const uint64_t *key;          // of each tensor
  const int64_t *draw;          // the numbers of the draws that ops name
  int64_t step, level;
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

// The words of every tensor and replica, as 32-bit integers; `level` is that of philox.h, −1 for the best.
int64_t words(int64_t level, int64_t tensors, int64_t rows, void *const *out, const int64_t *size, const int64_t *first,
              const int64_t *replica, const uint64_t *key, int64_t step, int64_t draw) {
  if (level > philox_best()) return BAD_SIZE;
  if (level < 0) level = philox_best();
  for (int64_t t = 0; t < tensors; t++)
    for (int64_t row = 0; row < rows; row++)
      philox_range(level, (uint32_t *)out[t] + row * size[t], first ? first[t] : 0, size[t], key[t],
                   replica ? (uint32_t)replica[row] : 0, (uint32_t)step, (uint32_t)draw);
  return FINE;
}

// A permutation of the points for each replica, by Fisher and Yates: i ← swapped with ⌊u (i + 1)⌋, u the word of entry i.
int64_t shuffle(int64_t rows, int64_t points, uint64_t key, int64_t step, const int64_t *replica, int64_t *out) {
  const int64_t level = philox_best();
  if (!out && rows * points > 0) return NO_BUFFER;
  for (int64_t row = 0; row < rows; row++, out += points) {
    uint32_t word[CHUNK];
    for (int64_t i = 0; i < points; i++) out[i] = i;
    for (int64_t from = (points - 1) / CHUNK * CHUNK; from >= 0 && points > 0; from -= CHUNK) {
      const int64_t m = points - from < CHUNK ? points - from : CHUNK;
      philox_range(level, word, from, m, key, replica ? (uint32_t)replica[row] : 0, (uint32_t)step, 0);
      for (int64_t i = from + m - 1; i >= from; i--) {
        const int64_t j = (int64_t)((word[i - from] * (uint64_t)(i + 1)) >> 32), held = out[i];
        out[i] = out[j];
        out[j] = held;
      }
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
#include "batch.c"

static void NAME(share)(const Task *task, int64_t thread, int64_t threads) {
  // where there are rows enough a thread takes neighbouring ones, the same in every call: they stay in its cache
  const int apart = task->rows >= threads;
  const int64_t from_row = apart ? task->rows * thread / threads : 0;
  const int64_t to_row = apart ? task->rows * (thread + 1) / threads : task->rows;
  NAME(Batch) batch = {.task = task, .ops = task->ops};
  int64_t turn = 0;
  FLUSH
  for (int64_t t = 0; t < task->tensors; t++)
    for (int64_t row = from_row; row < to_row; row++) {
      const Op *op = task->op + (task->each ? row * task->ops : 0);
      for (int64_t at = 0, size = task->size[t]; at < size; at += BLOCK, turn++)
        if (apart || turn % threads == thread) NAME(add)(&batch, op, t, row, at, size - at < BLOCK ? size : at + BLOCK);
    }
  NAME(carry_out)(&batch);
  RESTORE
}

int64_t NAME(run)(int64_t tensors, int64_t rows, void *const *theta, void *const *p, void *const *g, const int64_t *size,
                  const int64_t *first, const int64_t *replica, int64_t ops, int64_t each, const Op *op,
                  const uint64_t *key, const int64_t *draw, int64_t draws, int64_t step, int64_t threads) {
  const Task task = {tensors, rows, ops, each, theta, p, g, size, first, replica, op, key, draw, step, philox_best()};
  if (each && each != rows) return BAD_SIZE;
  const int64_t fault = sound(op, ops * (each ? each : 1), theta ? 2 : 1, 0, p, g, key && draw ? draws : 0);
  if (fault) return fault;
  for (int64_t i = ops; i < ops * each; i++)
    if (op[i].draw != op[i - ops].draw) return BAD_OP;  // the noise of a batch is made for all its rows
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
