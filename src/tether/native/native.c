// One pass over memory for a whole word: every block of a part is loaded once, taken through all the linear
// letters of the word with its noise made on the spot, and stored once. build.py compiles this file on first
// use; noise.py (the streams) and sums.py (the letters) hold the same mathematics in Python.

#ifndef REAL
#include "kernel.h"

typedef struct { int64_t code; double value; } Step;           // of a formula: a number, ξ, pᵀp, or an operation
typedef struct { int64_t op, field, from, to; } Formula;       // which coefficient of which op it is, and its steps
enum { NUMBER, XI, P2, PLUS, TIMES, OVER, MINUS, EXP, EXPM1, SQRT, SHRINK, CODES };
enum { DEPTH_OF_STACK = 16, OPS = 48, THERMOSTAT = 2 };        // an op of target 2 sets ξ to its first coefficient

typedef struct {
  int64_t tensors, rows, blocks, ops, each;  // rows: replicas that a tensor holds; each: have they ops of their own?
  void *const *theta, *const *p, *const *g;
  const int64_t *size;   // of one replica
  const uint64_t *lane;  // the numbers of the replicas plus one; null where there are none
  const Op *op;          // rows × ops, or ops
  const uint64_t *key;   // draws × blocks × 3
  int64_t formulas, stride;  // stride: from the steps of one replica to those of the next, 0 where they share them
  const Formula *formula;
  const Step *step;
  double *xi;            // rows
  double *sums;          // blocks: pᵀp of each, where several threads share a replica
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

// Are these formulas of these ops, and do their steps keep to the stack?
static int64_t computable(const Task *task, int64_t steps) {
  if (task->formulas && (!task->xi || task->ops > OPS)) return BAD_SIZE;
  for (int64_t f = 0; f < task->formulas; f++) {
    const Formula x = task->formula[f];
    if (x.op < 0 || x.op >= task->ops || x.field < 0 || x.field > 3 || x.from < 0 || x.to > steps) return BAD_OP;
    if ((x.field == 1 && !task->p) || (x.field == 2 && !task->g)) return NO_BUFFER;
    if (x.field == 3 && task->op[x.op].draw < 0) return BAD_OP;
    int64_t height = 0;
    for (int64_t i = x.from; i < x.to; i++) {
      const int64_t code = task->step[i].code;
      if (code < 0 || code >= CODES) return BAD_OP;
      if (code <= P2) height++;
      if (code >= PLUS && code <= OVER) height--;
      if (height < 1 || height > DEPTH_OF_STACK) return BAD_OP;
    }
    if (height != 1) return BAD_OP;
  }
  return FINE;
}

static double value(const Step *step, int64_t from, int64_t to, double xi, double p2) {
  double stack[DEPTH_OF_STACK + 1], *top = stack;  // stack[0] is never used: `top` points to the last number
  for (int64_t i = from; i < to; i++) {
    switch (step[i].code) {
      case NUMBER: *++top = step[i].value; break;
      case XI: *++top = xi; break;
      case P2: *++top = p2; break;
      case PLUS: top--; *top += top[1]; break;
      case TIMES: top--; *top *= top[1]; break;
      case OVER: top--; *top /= top[1]; break;
      case MINUS: *top = -*top; break;
      case EXP: *top = exp(*top); break;
      case EXPM1: *top = expm1(*top); break;
      case SQRT: *top = sqrt(*top); break;
      case SHRINK: *top = *top == 0 ? 1 : -expm1(-*top) / *top; break;
    }
  }
  return *top;
}

// The ops from `from` to `to` of a replica with the formulas among their coefficients worked out.
static void work_out(Op *out, const Task *task, int64_t row, int64_t from, int64_t to, double xi, double p2) {
  memcpy(out, task->op + (task->each ? row * task->ops : 0) + from, (size_t)(to - from) * sizeof(Op));
  for (int64_t f = 0; f < task->formulas; f++) {
    const Formula x = task->formula[f];
    if (x.op >= from && x.op < to)
      (&out[x.op - from].own)[x.field] = value(task->step + row * task->stride, x.from, x.to, xi, p2);
  }
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

// Takes one block through some ops; returns its pᵀp where that is asked for.
CLONES static double NAME(block)(REAL *theta, REAL *p, const REAL *g, int64_t n, const Op *table, int64_t ops, int square,
                                 const Task *task, uint64_t lane, int64_t block) {
  _Alignas(64) REAL R[CHUNK];
  uint64_t state[DRAWS][4];
  double lanes[8] = {0}, sum = 0;  // in an order of its own, which no instruction set changes
  for (int64_t o = 0; o < ops; o++) {
    int64_t draw = table[o].draw;
    if (draw >= 0) start(state[draw], task->key + 3 * (draw * task->blocks + block), lane);
  }
  for (int64_t at = 0; at < n; at += CHUNK) {
    int64_t m = n - at < CHUNK ? n - at : CHUNK, held = -1;
    for (int64_t o = 0; o < ops; o++) {
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
    if (!square) continue;
    const REAL *y = p + at;
    int64_t i = 0;
    for (; i + 8 <= m; i += 8)
      for (int64_t j = 0; j < 8; j++) lanes[j] += (double)y[i + j] * y[i + j];
    for (; i < m; i++) lanes[i % 8] += (double)y[i] * y[i];
  }
  for (int64_t j = 0; j < 8; j++) sum += lanes[j];
  return sum;
}

// Takes all tensors of a replica through some ops, or every `threads`th block of them; returns their pᵀp.
static double NAME(sweep)(const Task *task, int64_t row, const Op *table, int64_t ops, int square, int64_t thread,
                          int64_t threads) {
  const uint64_t lane = task->lane ? task->lane[row] : 0;
  int64_t block = 0;
  double sum = 0;
  for (int64_t t = 0; t < task->tensors; t++) {
    const int64_t size = task->size[t];
    for (int64_t at = 0; at < size; at += BLOCK, block++) {
      if (block % threads != thread) continue;
      const int64_t n = size - at < BLOCK ? size - at : BLOCK, from = row * size + at;
      REAL *theta = task->theta ? (REAL *)task->theta[t] + from : 0, *p = task->p ? (REAL *)task->p[t] + from : 0;
      const REAL *g = task->g ? (REAL *)task->g[t] + from : 0;
      const double own = NAME(block)(theta, p, g, n, table, ops, square, task, lane, block);
      sum += own;
      if (square && threads > 1) task->sums[block] = own;
    }
  }
  return sum;
}

// A replica goes through the whole program: up to where the thermostat needs pᵀp, and on from there.
static void NAME(through)(const Task *task, int64_t row, int64_t thread, int64_t threads) {
  Op own[OPS];
  const Op *all = task->op + (task->each ? row * task->ops : 0);
  double xi = task->formulas ? task->xi[row] : 0, p2 = 0;
  for (int64_t from = 0; from < task->ops;) {
    int64_t to = from;
    while (to < task->ops && all[to].target != THERMOSTAT) to++;
    const int square = to < task->ops;
    if (task->formulas) work_out(own, task, row, from, to, xi, p2);
    p2 = NAME(sweep)(task, row, task->formulas ? own : all + from, to - from, square, thread, threads);
    if (!square) break;
    if (threads > 1) {  // each sums all blocks in the same order: any number of threads gives the same
#pragma omp barrier
      p2 = 0;
      for (int64_t b = 0; b < task->blocks; b++) p2 += task->sums[b];
#pragma omp barrier
    }
    work_out(own, task, row, to, to + 1, xi, p2);
    xi = own[0].own;
    from = to + 1;
  }
  if (task->formulas && thread == 0) task->xi[row] = xi;
}

static void NAME(share)(const Task *task, int64_t thread, int64_t threads) {
  // where there are rows enough a thread takes neighbouring ones, the same in every call: they stay in its cache
  const int apart = task->rows >= threads;
  const int64_t from = apart ? task->rows * thread / threads : 0;
  const int64_t to = apart ? task->rows * (thread + 1) / threads : task->rows;
  FLUSH
  for (int64_t row = from; row < to; row++) NAME(through)(task, row, apart ? 0 : thread, apart ? 1 : threads);
  RESTORE
}

int64_t NAME(run)(int64_t tensors, int64_t rows, void *const *theta, void *const *p, void *const *g, const int64_t *size,
                  const uint64_t *lane, int64_t blocks, int64_t ops, int64_t each, const Op *op, const uint64_t *key,
                  int64_t keys, int64_t formulas, const Formula *formula, int64_t steps, int64_t stride, const Step *step,
                  double *xi, double *sums, int64_t threads) {
  const Task task = {tensors, rows, blocks, ops, each, theta, p, g, size, lane, op, key, formulas, stride, formula, step,
                     xi, sums};
  if (each && each != rows) return BAD_SIZE;
  const int64_t targets = formulas ? 3 : theta ? 2 : 1, draws = blocks ? keys / blocks : DRAWS;
  if (formulas && (!p || !theta || !sums)) return NO_BUFFER;
  int64_t fault = sound(op, ops * (each ? each : 1), targets, 0, p, g, draws);
  if (!fault) fault = computable(&task, steps);
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
