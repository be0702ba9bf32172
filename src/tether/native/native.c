// One pass over memory for a whole word: every block of a part is loaded once, taken through all the linear
// letters of the word with its noise made on the spot, and stored once. build.py compiles this file on first
// use; noise.py (the streams) and sums.py (the letters) hold the same mathematics in Python.

#ifndef REAL
#include "kernel.h"

#include "philox.h"

typedef struct { int64_t code; double value; } Step;           // of a formula: a number, ξ, pᵀp, or an operation
typedef struct { int64_t op, field, from, to; } Formula;       // which coefficient of which op it is, and its steps
enum { NUMBER, XI, P2, PLUS, TIMES, OVER, MINUS, EXP, EXPM1, SQRT, SHRINK, CODES };
enum { DEPTH_OF_STACK = 16, OPS = 48, GROUP = 16 };             // GROUP: thermostats that go together
enum { THERMOSTAT = 2 };                                       // an op of this target sets ξ to its first coefficient

typedef struct {
  int64_t tensors, rows, ops, each;  // rows: replicas that a tensor holds; each: have they ops of their own?
  void *const *theta, *const *p, *const *g;
  const int64_t *size, *first;  // of one replica; the index of its first entry in the whole parameter, null for 0
  const int64_t *replica;       // the numbers of the replicas; null for 0
  const Op *op;                 // rows × ops, or ops
  const uint64_t *key;          // of each tensor
  const int64_t *draw;          // the numbers of the draws that ops name
  int64_t step, level;
  int64_t formulas, stride;     // stride: from the steps of one replica to those of the next, 0 where they share them
  const Formula *formula;
  const Step *tape;
  int64_t parts;                // with a thermostat each
  const int64_t *part;          // of each tensor; null for 0
  double *xi;                   // parts × rows
  double *sums;                 // rows × blocks: pᵀp of each
  int64_t blocks;               // of one replica
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
  if (task->formulas && (!task->xi || task->ops > OPS || task->parts < 1 || task->parts > GROUP)) return BAD_SIZE;
  for (int64_t t = 0; task->part && t < task->tensors; t++)
    if (task->part[t] < 0 || task->part[t] >= task->parts) return BAD_SIZE;
  for (int64_t f = 0; f < task->formulas; f++) {
    const Formula x = task->formula[f];
    if (x.op < 0 || x.op >= task->ops || x.field < 0 || x.field > 3 || x.from < 0 || x.to > steps) return BAD_OP;
    if ((x.field == 1 && !task->p) || (x.field == 2 && !task->g)) return NO_BUFFER;
    if (x.field == 3 && task->op[x.op].draw < 0) return BAD_OP;
    int64_t height = 0;
    for (int64_t i = x.from; i < x.to; i++) {
      const int64_t code = task->tape[i].code;
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

// The ops from `from` to `to` of a part of a replica with the formulas among their coefficients worked out.
static void work_out(Op *out, const Task *task, int64_t row, int64_t part, int64_t from, int64_t to, double xi, double p2) {
  const Step *tape = task->tape + (part * task->rows + row) * task->stride;
  memcpy(out, task->op + (task->each ? row * task->ops : 0) + from, (size_t)(to - from) * sizeof(Op));
  for (int64_t f = 0; f < task->formulas; f++) {
    const Formula x = task->formula[f];
    if (x.op >= from && x.op < to)
      (&out[x.op - from].own)[x.field] = value(tape, x.from, x.to, xi, p2);
  }
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

// pᵀp of a part of a replica, in one order, so that any number of threads gives the same
static double NAME(energy)(const Task *task, int64_t row, int64_t part) {
  const double *sum = task->sums + row * task->blocks;
  double p2 = 0;
  for (int64_t t = 0; t < task->tensors; t++)
    for (int64_t b = (task->size[t] + BLOCK - 1) / BLOCK; b > 0; b--, sum++)
      if (!task->part || task->part[t] == part) p2 += *sum;
  return p2;
}

// Some replicas go through the program together: up to where the thermostats need pᵀp, and on from there.
static void NAME(through)(const Task *task, int64_t from_row, int64_t to_row, int64_t thread, int64_t threads) {
  const int64_t parts = task->parts, pairs = task->formulas ? (to_row - from_row) * parts : 0;
  Op own[GROUP][OPS];  // of each part of each replica
  double xi[GROUP];
  NAME(Batch) batch = {.task = task};
  for (int64_t i = 0; i < pairs; i++) xi[i] = task->xi[i % parts * task->rows + from_row + i / parts];
  for (int64_t from = 0, to; from < task->ops; from = to + 1) {
    for (to = from; to < task->ops && task->op[to].target != THERMOSTAT;) to++;
    batch.ops = to - from, batch.square = to < task->ops;
    for (int64_t i = 0; i < pairs; i++) work_out(own[i], task, from_row + i / parts, i % parts, from, to, xi[i], 0);
    int64_t first = 0, turn = 0;  // the first block of a tensor
    for (int64_t t = 0; t < task->tensors; t++) {
      for (int64_t row = from_row; row < to_row; row++) {
        const Op *op = task->op + (task->each ? row * task->ops : 0) + from;
        if (pairs) op = own[(row - from_row) * parts + (task->part ? task->part[t] : 0)];
        for (int64_t at = 0, size = task->size[t], b = first; at < size; at += BLOCK, b++, turn++)
          if (turn % threads == thread)
            NAME(add)(&batch, op, t, row, b, at, size - at < BLOCK ? size : at + BLOCK);
      }
      first += (task->size[t] + BLOCK - 1) / BLOCK;
    }
    NAME(carry_out)(&batch);
    if (!batch.square) break;
    if (threads > 1) {
#pragma omp barrier
    }
    for (int64_t i = 0; i < pairs; i++) {
      const int64_t row = from_row + i / parts, part = i % parts;
      work_out(own[i], task, row, part, to, to + 1, xi[i], NAME(energy)(task, row, part));
      xi[i] = own[i][0].own;
    }
    if (threads > 1) {
#pragma omp barrier
    }
  }
  for (int64_t i = 0; !thread && i < pairs; i++) task->xi[i % parts * task->rows + from_row + i / parts] = xi[i];
}

static void NAME(share)(const Task *task, int64_t thread, int64_t threads) {
  // where there are rows enough a thread takes neighbouring ones, the same in every call: they stay in its cache
  const int apart = task->rows >= threads;
  const int64_t from = apart ? task->rows * thread / threads : 0;
  const int64_t to = apart ? task->rows * (thread + 1) / threads : task->rows;
  const int64_t some = task->formulas ? GROUP / task->parts : task->rows;
  FLUSH
  for (int64_t row = from; row < to; row += some)
    NAME(through)(task, row, to - row < some ? to : row + some, apart ? 0 : thread, apart ? 1 : threads);
  RESTORE
}

int64_t NAME(run)(int64_t tensors, int64_t rows, void *const *theta, void *const *p, void *const *g, const int64_t *size,
                  const int64_t *first, const int64_t *replica, int64_t ops, int64_t each, const Op *op,
                  const uint64_t *key, const int64_t *draw, int64_t draws, int64_t step, int64_t formulas,
                  const Formula *formula, int64_t steps, int64_t stride, const Step *tape, int64_t parts,
                  const int64_t *part, double *xi, double *sums, int64_t threads) {
  int64_t blocks = 0;
  for (int64_t t = 0; t < tensors; t++) blocks += (size[t] + BLOCK - 1) / BLOCK;
  const Task task = {tensors, rows, ops, each, theta, p, g, size, first, replica, op, key, draw, step, philox_best(),
                     formulas, stride, formula, tape, parts, part, xi, sums, blocks};
  if (each && each != rows) return BAD_SIZE;
  if (formulas && (!p || !theta || !sums)) return NO_BUFFER;
  int64_t fault = sound(op, ops * (each ? each : 1), formulas ? 3 : theta ? 2 : 1, 0, p, g, key && draw ? draws : 0);
  if (!fault) fault = computable(&task, steps);
  if (fault) return fault;
  for (int64_t i = ops; i < ops * each; i++)  // what a batch does is the same for all its rows, but for coefficients
    if (op[i].draw != op[i - ops].draw || op[i].target != op[i - ops].target) return BAD_OP;
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
