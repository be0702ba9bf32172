// One pass over memory for a whole word: every block of a part is loaded once, taken through all the linear
// letters of the word with its noise made on the spot, and stored once. native.py compiles this file on first
// use; noise.py (the streams) and sums.py (the letters) hold the same mathematics in Python.

#ifndef REAL
#include <math.h>
#include <string.h>
#include "kernel.h"

// Momenta that die away become numbers so small that arithmetic with them is a hundred times slower: they are 0 here.
#ifdef __x86_64__
#include <xmmintrin.h>
#define FLUSH unsigned mode = _mm_getcsr(); _mm_setcsr(mode | 0x8040);
#define RESTORE _mm_setcsr(mode);
#else
#define FLUSH
#define RESTORE
#endif

#define PI 3.14159265358979323846

enum { BLOCK = 1 << 16, CHUNK = 2048 };
enum { IDENTITY, RELU, LEAKY, TANH, SIGMOID };  // activations, in the order of mlp.py
enum { BINARY, SQUARE, CLASSES };               // losses

// x ← own·x + p·p + g·g + R·R for x = p (target 0) or x = θ (target 1); draw says whose normals R are, −1 for none
typedef struct { int64_t target, draw; double own, p, g, R; } Op;

typedef struct {
  int64_t tensors, rows, blocks, ops, each;  // rows: replicas that a tensor holds; each: have they ops of their own?
  void *const *theta, *const *p, *const *g;
  const int64_t *size;   // of one replica
  const uint64_t *lane;  // the numbers of the replicas plus one; null where there are none
  const Op *op;          // rows × ops, or ops
  const uint64_t *key;   // draws × blocks × 3
} Task;

typedef struct {
  int64_t rows, columns, slack, ops;  // columns 0: circles, one weight a row
  void *theta, *q, *p;
  const void *g;
  const double *radius;
  void *const *noise;
  const Op *op;
} Bounded;

// SFC64 by Chris Doty-Humphrey, as in numpy; started at a hashed name with the counter at 1.
static void words(uint64_t *out, int64_t n, uint64_t s[4]) {
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
void shuffle(int64_t rows, int64_t points, const uint64_t *key, const uint64_t *lane, int64_t *out) {
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
}

#define REAL float
#define SIGNED int32_t
#define MANTISSA 23
#define BIAS 127
#define TERMS 5
#define SUFFIX _f32
#include "native.c"
#undef REAL
#undef SIGNED
#undef MANTISSA
#undef BIAS
#undef TERMS
#undef SUFFIX
#define REAL double
#define SIGNED int64_t
#define MANTISSA 52
#define BIAS 1023
#define TERMS 10
#define SUFFIX _f64
#include "native.c"

#else

// sin πx and cos πx for |x| < 2³⁰ or so, by their series on |πx| ≤ π/4: TERMS suffice for REAL.
static inline __attribute__((always_inline)) void NAME(turn)(REAL x, REAL *sine, REAL *cosine) {
  REAL doubled = 2 * x;
  SIGNED quarter = (SIGNED)(doubled + (doubled >= 0 ? (REAL)0.5 : (REAL)-0.5));
  REAL y = (REAL)PI * (x - (REAL)quarter / 2), y2 = y * y, c = 1, d = 1;
  for (int i = TERMS - 1; i >= 1; i--) {
    c = 1 - c * y2 * (1 / (REAL)((2 * i - 1) * (2 * i)));
    d = 1 - d * y2 * (1 / (REAL)((2 * i) * (2 * i + 1)));
  }
  d *= y;
  REAL cc = (quarter & 1) ? d : c, ss = (quarter & 1) ? c : d;
  *cosine = ((quarter + 1) & 2) ? -cc : cc;
  *sine = (quarter & 2) ? -ss : ss;
}

// Box–Muller on pairs of integers: r = √(−2 log u), u = (|i| + ¼)/2^(bits), and the angle φ = π j/2^(bits).
// log by 2 artanh((m − 1)/(m + 1)), its series to TERMS.
static inline __attribute__((always_inline)) void NAME(normals)(REAL *out, int64_t n, uint64_t s[4]) {
  int64_t k = (n + 1) / 2;
  uint64_t raw[CHUNK];
  SIGNED integers[CHUNK];
  REAL cosine[CHUNK / 2], sine[CHUNK / 2];
  words(raw, (int64_t)(2 * k * sizeof(REAL) / 8), s);
  memcpy(integers, raw, 2 * k * sizeof(REAL));
  const REAL unit = (REAL)(sizeof(REAL) == 4 ? 0x1p-31 : 0x1p-63);
  for (int64_t e = 0; e < k; e++) {
    REAL i = (REAL)integers[e], u = ((i < 0 ? -i : i) + (REAL)0.25) * unit;
    SIGNED bits;
    memcpy(&bits, &u, sizeof bits);
    const SIGNED one = (SIGNED)BIAS << MANTISSA, mask = ((SIGNED)1 << MANTISSA) - 1;
    SIGNED exponent = (bits >> MANTISSA) - BIAS;
    bits = (bits & mask) | one;
    REAL m;
    memcpy(&m, &bits, sizeof m);
    int big = m > (REAL)1.41421356237309504880;
    m = big ? m / 2 : m;
    REAL power = (REAL)(exponent + big);
    REAL t = (m - 1) / (m + 1), t2 = t * t, artanh = 1 / (REAL)(2 * TERMS + 1);
    for (int q = TERMS - 1; q >= 0; q--) artanh = artanh * t2 + 1 / (REAL)(2 * q + 1);
    REAL squared = -2 * (power * (REAL)0.69314718055994530942 + 2 * t * artanh);
#if MANTISSA == 23
    REAL r = sqrtf(squared > 0 ? squared : 0);
#else
    REAL r = sqrt(squared > 0 ? squared : 0);
#endif
    REAL ss, cc;
    NAME(turn)((REAL)integers[k + e] * unit, &ss, &cc);
    cosine[e] = r * cc;
    sine[e] = r * ss;
  }
  memcpy(out, cosine, k * sizeof(REAL));
  memcpy(out + k, sine, (n - k) * sizeof(REAL));
}

CLONES static void NAME(block)(REAL *theta, REAL *p, const REAL *g, int64_t n, const Task *task, int64_t row,
                               int64_t block) {
  REAL R[CHUNK];
  uint64_t state[8][4];
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

void NAME(run)(int64_t tensors, int64_t rows, void *const *theta, void *const *p, void *const *g, const int64_t *size,
               const uint64_t *lane, int64_t blocks, int64_t ops, int64_t each, const Op *op, const uint64_t *key,
               int64_t threads) {
  const Task task = {tensors, rows, blocks, ops, each, theta, p, g, size, lane, op, key};
#pragma omp parallel num_threads(threads) if (threads > 1)
  NAME(share)(&task, omp_get_thread_num(), omp_get_num_threads());
}

// The angle of the point (b, a) in units of π: atan2(a, b)/π.
static inline __attribute__((always_inline)) REAL NAME(angle)(REAL a, REAL b) {
  REAL x = a < 0 ? -a : a, y = b < 0 ? -b : b, low = x < y ? x : y, high = x < y ? y : x;
  REAL t = low / (high + (REAL)1e-37);  // 0 at the origin
  REAL steep = t > (REAL)0.41421356237309504880 ? 1 : 0;  // tan π/8: taken from π/4
  REAL u = (t - steep) / (1 + t * steep), u2 = u * u, series = 0;
  for (int i = 2 * TERMS; i >= 0; i--) series = series * -u2 + 1 / (REAL)(2 * i + 1);
  REAL z = u * series * (REAL)(1 / PI) + (REAL)0.25 * steep;
  z = x < y ? z : (REAL)0.5 - z;
  z = b < 0 ? 1 - z : z;
  return a < 0 ? -z : z;
}

// Surfaces: a part on circles or spheres, in one pass over memory. Ops as above, with g and R seen along the surface,
// target 1 the drift for a time p, and target 2 a step of the surrounding space, projected. R comes ready made.

// θ = r sin q, ξ = r cos q for every weight; the momentum along the circle is p.
CLONES static void NAME(circles)(const Bounded *task, int64_t from, int64_t to) {
  REAL sine[CHUNK], cosine[CHUNK];
  const REAL r = (REAL)task->radius[0], turns = (REAL)(1 / PI), per = (REAL)(1 / task->radius[0]);
  for (int64_t at = from; at < to; at += CHUNK) {
    int64_t m = to - at < CHUNK ? to - at : CHUNK;
    REAL *theta = (REAL *)task->theta + at, *q = (REAL *)task->q + at, *p = task->p ? (REAL *)task->p + at : 0;
    const REAL *g = task->g ? (const REAL *)task->g + at : 0;
    for (int64_t i = 0; i < m; i++) NAME(turn)(q[i] * turns, &sine[i], &cosine[i]);
    for (int64_t o = 0; o < task->ops; o++) {
      const Op op = task->op[o];
      const REAL own = (REAL)op.own, cp = (REAL)op.p * per, cg = (REAL)op.g, cR = (REAL)op.R;
      const REAL *R = op.draw >= 0 ? (const REAL *)task->noise[op.draw] : 0;
      if (op.target == 0) {
        for (int64_t i = 0; i < m; i++) p[i] *= own;
        if (op.g != 0) for (int64_t i = 0; i < m; i++) p[i] += cg * cosine[i] * g[i];
        if (R) for (int64_t i = 0; i < m; i++) p[i] += cR * R[at + i];
      } else if (op.target == 1) {
        for (int64_t i = 0; i < m; i++) q[i] += cp * p[i];
      } else if (R) {
        const REAL *pair = R + 2 * at;
        for (int64_t i = 0; i < m; i++)
          q[i] = (REAL)PI * NAME(angle)(r * sine[i] + cg * g[i] + cR * pair[2 * i], r * cosine[i] + cR * pair[2 * i + 1]);
      } else {
        for (int64_t i = 0; i < m; i++) q[i] = (REAL)PI * NAME(angle)(r * sine[i] + cg * g[i], r * cosine[i]);
      }
    }
    // beyond one turn per rounding error the angle says nothing any more
    const REAL most = (REAL)((SIGNED)1 << MANTISSA);
    for (int64_t i = 0; i < m; i++) q[i] = (q[i] < 0 ? -q[i] : q[i]) < most ? q[i] : 0;
    for (int64_t i = 0; i < m; i++) {
      REAL c, x = q[i] * turns * (REAL)0.5;
      SIGNED whole = (SIGNED)(x + (x >= 0 ? (REAL)0.5 : (REAL)-0.5));
      q[i] -= (REAL)(2 * PI) * (REAL)whole;
      NAME(turn)(q[i] * turns, &sine[i], &c);
      theta[i] = r * sine[i];
    }
  }
}

static inline __attribute__((always_inline)) REAL NAME(dot)(const REAL *x, const REAL *y, int64_t n) {
  REAL sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

// |x|, also where its square overflows or vanishes
static inline __attribute__((always_inline)) REAL NAME(norm)(const REAL *x, int64_t n) {
  REAL squared = NAME(dot)(x, x, n), most = 0, sum = 0;
  if (squared > (REAL)1e-30 && squared < (REAL)1e30) return (REAL)sqrt(squared);
  for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : -x[i] > most ? -x[i] : most;
  if (most == 0) return 0;
  for (int64_t i = 0; i < n; i++) sum += (x[i] / most) * (x[i] / most);
  return most * (REAL)sqrt(sum);
}

// Rows with their slack, q of length r; the momentum p is orthogonal to q.
CLONES static void NAME(spheres)(const Bounded *task, int64_t from, int64_t to) {
  const int64_t columns = task->columns, width = columns + task->slack;
  for (int64_t row = from; row < to; row++) {
    REAL *theta = (REAL *)task->theta + row * columns, *q = (REAL *)task->q + row * width;
    REAL *p = task->p ? (REAL *)task->p + row * width : 0;
    const REAL *g = task->g ? (const REAL *)task->g + row * columns : 0;
    const REAL r = (REAL)task->radius[row];
    for (int64_t o = 0; o < task->ops; o++) {
      const Op op = task->op[o];
      const REAL own = (REAL)op.own, cg = (REAL)op.g, cR = (REAL)op.R;
      const REAL *R = op.draw >= 0 ? (const REAL *)task->noise[op.draw] + row * width : 0;
      if (op.target == 0) {
        REAL along = 0;
        if (op.g != 0) along += cg * NAME(dot)(q, g, columns);
        if (R) along += cR * NAME(dot)(q, R, width);
        along /= r * r;
        for (int64_t i = 0; i < width; i++) p[i] = own * p[i] - along * q[i];
        if (op.g != 0) for (int64_t i = 0; i < columns; i++) p[i] += cg * g[i];
        if (R) for (int64_t i = 0; i < width; i++) p[i] += cR * R[i];
      } else if (op.target == 1) {
        REAL speed = NAME(norm)(p, width), angle = speed * (REAL)op.p / r;
        REAL c = (REAL)cos(angle), s = (REAL)sin(angle), along = speed > 0 ? r * s / speed : (REAL)op.p;
        REAL back = s * speed / r;
        for (int64_t i = 0; i < width; i++) {
          REAL x = q[i], v = p[i];
          q[i] = c * x + along * v;
          p[i] = c * v - back * x;
        }
        REAL scale = r / NAME(norm)(q, width);
        for (int64_t i = 0; i < width; i++) q[i] *= scale;
        REAL off = NAME(dot)(q, p, width) / (r * r);
        for (int64_t i = 0; i < width; i++) p[i] -= off * q[i];
      } else {
        for (int64_t i = 0; i < columns; i++) q[i] += cg * g[i];
        if (R) for (int64_t i = 0; i < width; i++) q[i] += cR * R[i];
        REAL scale = r / NAME(norm)(q, width);
        for (int64_t i = 0; i < width; i++) q[i] *= scale;
      }
    }
    memcpy(theta, q, columns * sizeof(REAL));
  }
}

void NAME(bounded)(int64_t rows, int64_t columns, int64_t slack, void *theta, void *q, void *p, const void *g,
                   const double *radius, void *const *noise, int64_t ops, const Op *op, int64_t threads) {
  const Bounded task = {rows, columns, slack, ops, theta, q, p, g, radius, noise, op};
  const int64_t unit = columns ? 16 : CHUNK, pieces = (rows + unit - 1) / unit;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < pieces; i++) {
    int64_t from = i * unit, to = from + unit < rows ? from + unit : rows;
    FLUSH
    if (columns) NAME(spheres)(&task, from, to);
    else NAME(circles)(&task, from, to);
    RESTORE
  }
}

// Is every number finite? A non-finite one has all exponent bits set.
CLONES static int NAME(infinite)(const SIGNED *bits, int64_t n) {
  const SIGNED exponent = (SIGNED)(2 * BIAS + 1) << MANTISSA;
  SIGNED bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= (SIGNED)((bits[i] & exponent) == exponent);
  return bad != 0;
}

int64_t NAME(finite)(int64_t tensors, void *const *x, const int64_t *size, int64_t threads) {
  int bad = 0;
  for (int64_t t = 0; t < tensors; t++) {
    const SIGNED *bits = x[t];
    const int64_t blocks = (size[t] + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) if (threads > 1 && blocks > 1) reduction(| : bad)
    for (int64_t i = 0; i < blocks; i++)
      bad |= NAME(infinite)(bits + i * BLOCK, size[t] - i * BLOCK < BLOCK ? size[t] - i * BLOCK : BLOCK);
  }
  return !bad;
}

#include "stiefel.c"
#include "mlp.c"

#endif
