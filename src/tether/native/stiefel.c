// Included by native.c, once for each REAL. Matrices with orthonormal columns, Q of r × s with QᵀQ = c² I: a whole word
// for a stack of them, with the products by torch's own BLAS. surfaces/orthogonal.py holds the same mathematics.

typedef void NAME(Gemm)(const char *, const char *, const int *, const int *, const int *, const REAL *, const REAL *,
                        const int *, const REAL *, const int *, const REAL *, REAL *, const int *);

#ifndef NARROW
#define NARROW 16  // columns; as in surfaces/orthogonal.py
#endif

typedef struct {
  int64_t r, s, tall;  // tall: the parameter is Q; else Qᵀ
  REAL tolerance, scale;
  int64_t iterations, threads;  // threads: for the work on one matrix
  NAME(Gemm) *gemm;
} NAME(Stiefel);

// BLAS stores by columns, so what it sees of the parameter is Qᵀ where that is tall, with s rows, else Q.

// to ← times·QᵀP, s × s; where P is Q only the upper blocks are multiplied and then mirrored
static void NAME(inner)(const NAME(Stiefel) *m, const REAL *q, const REAL *p, REAL times, REAL *to) {
  const int s = (int)m->s, r = (int)m->r, lead = m->tall ? s : r, block = 256;
  const REAL zero = 0;
  const char *left = m->tall ? "N" : "T", *right = m->tall ? "T" : "N";
  if (q != p || s < 2 * block) {
    m->gemm(left, right, &s, &s, &r, &times, q, &lead, p, &lead, &zero, to, &s);
    return;
  }
  for (int at = 0; at < s; at += block) {
    int columns = s - at < block ? s - at : block, rows = at + columns;
    const REAL *from = q + (m->tall ? at : (int64_t)at * r);
    m->gemm(left, right, &rows, &columns, &r, &times, q, &lead, from, &lead, &zero, to + (int64_t)at * s, &s);
  }
  for (int64_t i = 0; i < s; i += 16)
    for (int64_t j = i; j < s; j++)
      for (int64_t k = i; k < i + 16 && k < j && k < s; k++) to[k * s + j] = to[j * s + k];
}

// to ← times·QΛ + keep·to with Λ symmetric
static void NAME(outer)(const NAME(Stiefel) *m, const REAL *q, const REAL *multiplier, REAL times, REAL keep, REAL *to) {
  const int s = (int)m->s, r = (int)m->r;
  if (m->tall) m->gemm("N", "N", &s, &r, &s, &times, multiplier, &s, q, &s, &keep, to, &s);
  else m->gemm("N", "N", &r, &s, &s, &times, q, &r, multiplier, &s, &keep, to, &r);
}

// |columns of x − y|² from `first` to `last`
CLONES static void NAME(lengths)(const NAME(Stiefel) *m, const REAL *x, const REAL *y, int64_t first, int64_t last,
                                 REAL *to) {
  for (int64_t j = first; j < last; j++) to[j] = 0;
  if (m->tall) {
    for (int64_t i = 0; i < m->r; i++)
      for (int64_t j = first; j < last; j++) {
        REAL d = x[i * m->s + j] - y[i * m->s + j];
        to[j] += d * d;
      }
    return;
  }
  for (int64_t j = first; j < last; j++) {
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = j * m->r; i < (j + 1) * m->r; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    to[j] = sum;
  }
}

// the longest column of (x − y)/c
static REAL NAME(reach)(const NAME(Stiefel) *m, const REAL *x, const REAL *y, REAL *columns) {
  REAL longest = 0;
#pragma omp parallel for num_threads(m->threads) if (m->threads > 1)
  for (int64_t j = 0; j < m->s; j += 128) NAME(lengths)(m, x, y, j, j + 128 < m->s ? j + 128 : m->s, columns);
  for (int64_t j = 0; j < m->s; j++) longest = columns[j] > longest ? columns[j] : longest;
  return ROOT(longest) / m->scale;
}

// Λ = ½QᵀQ/c² of a narrow matrix, with its sums in double precision: those over long columns need it.
CLONES static void NAME(narrow)(const NAME(Stiefel) *m, const REAL *q, REAL *multiplier) {
  double sums[NARROW * NARROW] = {0};
  const int64_t s = m->s, r = m->r;
  const double times = 0.5 / ((double)m->scale * m->scale);
  if (m->tall) {
    for (int64_t i = 0; i < r; i++)
      for (int64_t j = 0; j < s; j++)
        for (int64_t k = 0; k <= j; k++) sums[j * NARROW + k] += (double)q[i * s + j] * q[i * s + k];
  } else {
    for (int64_t j = 0; j < s; j++)
      for (int64_t k = 0; k <= j; k++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < r; i++) sum += (double)q[j * r + i] * q[k * r + i];
        sums[j * NARROW + k] = sum;
      }
  }
  for (int64_t j = 0; j < s; j++)
    for (int64_t k = 0; k <= j; k++) multiplier[j * s + k] = multiplier[k * s + j] = (REAL)(times * sums[j * NARROW + k]);
}

// The diagonal of Λ in double precision, from column `first` to `last`: of a wide matrix with long columns those are the
// entries that single precision gets wrong, and the iteration would follow its errors.
CLONES static void NAME(diagonal)(const NAME(Stiefel) *m, const REAL *q, int64_t first, int64_t last, REAL *multiplier) {
  double sums[128] = {0};
  const double times = 0.5 / ((double)m->scale * m->scale);
  for (int64_t i = 0; i < m->r; i++)
    for (int64_t j = first; j < last; j++) {
      const double x = q[m->tall ? i * m->s + j : j * m->r + i];
      sums[j - first] += x * x;
    }
  for (int64_t j = first; j < last; j++) multiplier[j * m->s + j] = (REAL)(times * sums[j - first]);
}

// the longest row of Λ after ½ is taken off its diagonal, and the largest entry
CLONES static REAL NAME(rows)(REAL *multiplier, int64_t s, REAL *largest) {
  REAL longest = 0, most = 0;
  for (int64_t i = 0; i < s; i++) {
    REAL *row = multiplier + i * s;
    row[i] -= (REAL)0.5;
    REAL sum = 0, top = 0;
#pragma omp simd reduction(+ : sum) reduction(max : top)
    for (int64_t j = 0; j < s; j++) {
      REAL size = row[j] < 0 ? -row[j] : row[j];
      sum += size * size;
      top = size > top ? size : top;
    }
    if (!(sum <= longest)) longest = longest == longest ? sum : longest;  // nan stays
    most = top > most ? top : most;
  }
  *largest = most;
  return ROOT(longest);
}

CLONES static void NAME(piece)(REAL *to, REAL a, const REAL *x, REAL b, const REAL *y, int64_t n) {
  if (a == 1) for (int64_t i = 0; i < n; i++) to[i] = x[i] + b * y[i];
  else for (int64_t i = 0; i < n; i++) to[i] = a * x[i] + b * y[i];
}

// to ← a·x + b·y
static void NAME(combine)(const NAME(Stiefel) *m, REAL *to, REAL a, const REAL *x, REAL b, const REAL *y) {
  const int64_t n = m->r * m->s;
#pragma omp parallel for num_threads(m->threads) if (m->threads > 1)
  for (int64_t i = 0; i < n; i += BLOCK) NAME(piece)(to + i, a, x + i, b, y + i, n - i < BLOCK ? n - i : BLOCK);
}

// Λ ← ½(QᵀV + VᵀQ)/c², so that V − QΛ is the part of V along Σ (4.15)
static void NAME(across)(const NAME(Stiefel) *m, const REAL *q, const REAL *v, REAL *multiplier) {
  NAME(inner)(m, q, v, (REAL)0.5 / (m->scale * m->scale), multiplier);
  for (int64_t block = 0; block < m->s; block += 16)
    for (int64_t i = block; i < m->s; i++)
      for (int64_t j = block; j < block + 16 && j <= i; j++) {
        REAL both = multiplier[i * m->s + j] + multiplier[j * m->s + i];
        multiplier[i * m->s + j] = multiplier[j * m->s + i] = both;
      }
}

// Λ ← ½QᵀQ/c²
static void NAME(gram)(const NAME(Stiefel) *m, const REAL *q, REAL *multiplier) {
  const int64_t s = m->s;
  const int precise = m->r >= 256;
  if (precise && s <= NARROW) NAME(narrow)(m, q, multiplier);
  else NAME(inner)(m, q, q, (REAL)0.5 / (m->scale * m->scale), multiplier);
  if (precise && s > NARROW) {
#pragma omp parallel for num_threads(m->threads) if (m->threads > 1)
    for (int64_t j = 0; j < s; j += 128) NAME(diagonal)(m, q, j, j + 128 < s ? j + 128 : s, multiplier);
  }
}

// x ← the point of Σ on the normal through `start`, with normal ← what was taken off; 0 where x is too far for that.
// `free`: the step may lead across Σ. That part of it is taken off first, unless the step is so short that the
// iterations take it off as fast; what was taken off is not in `normal` then.
static int NAME(onto)(const NAME(Stiefel) *m, REAL *x, const REAL *start, REAL *normal, REAL *multiplier, REAL *step,
                      int free) {
  const int64_t s = m->s;
  const REAL floor = 4 * (REAL)(sizeof(REAL) == 4 ? 0x1p-23 : 0x1p-52) * (REAL)sqrt((double)s);
  REAL v = NAME(reach)(m, x, start, multiplier), before = 0;
  if (free && v > (REAL)5e-4) {
    NAME(combine)(m, step, 1, x, -1, start);
    NAME(across)(m, start, step, multiplier);
    NAME(outer)(m, start, multiplier, -1, 1, x);
  }
  for (int64_t k = 0; k < m->iterations; k++) {
    REAL largest;
    NAME(gram)(m, x, multiplier);
    REAL a = NAME(rows)(multiplier, s, &largest), size = 2 * largest;
    if (k && size <= 2 * m->tolerance) return 1;
    if (k ? !(a < (REAL)0.7 * before) : !(a < (REAL)1e18)) return k && a <= floor;
    NAME(outer)(m, start, multiplier, 1, 0, k ? step : normal);
    NAME(combine)(m, x, 1, x, -1, k ? step : normal);
    if (k) NAME(combine)(m, normal, 1, normal, 1, step);
    if (size <= m->tolerance || a * (2 * v + a) <= m->tolerance) return 1;
    v += a;
    before = a;
  }
  return 0;
}

// |the longest row|²
CLONES static REAL NAME(longest)(const REAL *x, int64_t s) {
  REAL longest = 0;
  for (int64_t i = 0; i < s; i++) {
    REAL sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = i * s; j < (i + 1) * s; j++) sum += x[j] * x[j];
    if (!(sum <= longest)) longest = longest == longest ? sum : longest;  // nan stays
  }
  return longest;
}

// X ← ½(Xᵀ − X)
CLONES static void NAME(skew)(REAL *x, int64_t s) {
  for (int64_t block = 0; block < s; block += 16)
    for (int64_t i = block; i < s; i++)
      for (int64_t j = block; j < block + 16 && j <= i; j++) {
        const REAL half = (REAL)0.5 * (x[j * s + i] - x[i * s + j]);
        x[i * s + j] = half;
        x[j * s + i] = -half;
      }
}

// to ← a·x + b·y − z, the last two where they are given
CLONES static void NAME(sum)(REAL *to, REAL a, const REAL *x, REAL b, const REAL *y, const REAL *z, int64_t n) {
  if (!y) y = x, b = 0;
  if (z) for (int64_t i = 0; i < n; i++) to[i] = a * x[i] + b * y[i] - z[i];
  else for (int64_t i = 0; i < n; i++) to[i] = a * x[i] + b * y[i];
}

// The momenta of a square matrix as QA with A skew, which stays as it is while Q moves. A square parameter is `tall`.
typedef struct {
  REAL *a, *square, *excess, *work;
  REAL length, row, gap;  // |the longest rows|: of A, squared; of AᵀA; of ½(QᵀQ/c² − I)
  REAL ahead;             // how far along A the point is to go
  int holds, squared, measured, uneven;  // does A hold the momenta, are AᵀA and QᵀQ known, is `excess` still in Q?
} NAME(Frame);

// After how many terms of √(I − B) = I − B/2 − B²/8 − …, B = h²AᵀA, is QᵀQ within the tolerance? An entry of B is at most
// h²|a|², one of Bᵏ at most |b|²(|b| √s)^(k − 2) with a and b the longest rows. −1 for too many.
static int NAME(terms)(const NAME(Stiefel) *m, const NAME(Frame) *f, REAL h) {
  const REAL entry = h * h * f->length, row = f->squared ? h * h * f->row : entry;
  if (entry <= m->tolerance) return 0;
  REAL error = row * row;
  for (int k = 1; k < 6; k++, error *= row * (REAL)sqrt((double)m->s))
    if (error <= m->tolerance) return k;
  return -1;
}

// Can Q, with momenta p, go by h in closed form? Then A, and what else is needed for that, is known.
static int NAME(begin)(const NAME(Stiefel) *m, const REAL *q, const REAL *p, REAL h, NAME(Frame) *f) {
  REAL largest;
  if (!f->holds) {
    NAME(inner)(m, q, p, 1 / (m->scale * m->scale), f->a);  // its transpose, as rows
    NAME(skew)(f->a, m->s);
    f->length = NAME(longest)(f->a, m->s);
    f->squared = 0;
  }
  if (NAME(terms)(m, f, h) > 0 && !f->squared) {
    NAME(inner)(m, f->a, f->a, 1, f->square);
    f->row = ROOT(NAME(longest)(f->square, m->s));
    f->squared = 1;
  }
  if (NAME(terms)(m, f, h) < 0) return 0;
  if (!f->measured) {
    NAME(gram)(m, q, f->excess);
    f->gap = NAME(rows)(f->excess, m->s, &largest);
    f->measured = f->uneven = 1;
  }
  if (f->uneven && !(f->gap * (f->gap + ROOT(h * h * f->length)) <= m->tolerance)) return 0;
  f->ahead = h;
  return f->holds = 1;
}

// Are the way ahead and h more along A one rotation? The product of two is exp of the sum of two arcsinh(hA), and differs
// from that of the sum by ½ h h′ (h + h′) A AᵀA.
static int NAME(joins)(const NAME(Stiefel) *m, const NAME(Frame) *f, REAL h) {
  const REAL sum = f->ahead + h, off = h * f->ahead * sum * (f->squared ? ROOT(f->length) * f->row : 0);
  if (f->ahead == 0 || !(off < m->tolerance / 2 && -off < m->tolerance / 2)) return 0;
  const int terms = NAME(terms)(m, f, sum);
  return f->squared ? terms >= 0 : terms == 0;
}

// to ← Q(hA + √(I − B)), where RATTLE leads by h; A stays. What Q had lost of its orthonormal columns is put right on the
// way, once in a step.
static void NAME(rotate)(const NAME(Stiefel) *m, const REAL *q, NAME(Frame) *f, REAL *to) {
  static const REAL series[] = {(REAL)-0.5, (REAL)-0.125, (REAL)-0.0625, (REAL)-0.0390625, (REAL)-0.02734375};
  const int64_t s = m->s;
  const int terms = NAME(terms)(m, f, f->ahead);
  const REAL *power = f->square, h2 = f->ahead * f->ahead;  // Σ series[k] h²ᵏ Bᵏ⁺¹ but for `last`, by Horner's rule
  REAL last = terms > 0 ? h2 * series[terms - 1] : 0;
  for (int k = terms - 2; k >= 0; k--, power = f->work, last = h2) {
    NAME(combine)(m, to, last, power, 0, power);
    for (int64_t i = 0; i < s; i++) to[i * s + i] += series[k];
    NAME(inner)(m, f->square, to, 1, f->work);
  }
  NAME(sum)(f->work, f->ahead, f->a, last, terms > 0 ? power : 0, f->uneven ? f->excess : 0, s * s);
  memcpy(to, q, s * s * sizeof(REAL));
  NAME(outer)(m, q, f->work, 1, 1, to);
  f->ahead = f->uneven = 0;
}

// to ← own·x + cg·g + cR·R; a coefficient 0 takes nothing, not even nan
static void NAME(mix)(const NAME(Stiefel) *m, REAL *to, const Op *op, const REAL *x, const REAL *g, const REAL *const *noise) {
  const REAL own = (REAL)op->own, cg = (REAL)op->g, cR = (REAL)op->R;
  if (own == 0) memset(to, 0, m->r * m->s * sizeof(REAL));
  if (cg != 0) NAME(combine)(m, to, own, own == 0 ? to : x, cg, g);
  else if (own != 0) NAME(combine)(m, to, own, x, 0, x);
  if (cR != 0) NAME(combine)(m, to, 1, to, cR, noise[op->draw]);
}

// One matrix through the ops; 0, and nothing written, where a step is too long. Momenta may have a part across Σ in
// between: the next drift absorbs it.
static int NAME(matrix)(const NAME(Stiefel) *m, const REAL *theta, const REAL *momentum, const REAL *g,
                        const REAL *const *noise, int64_t ops, const Op *op, REAL *out, REAL *moved, REAL *scratch) {
  const int64_t n = m->r * m->s;
  const REAL *q = theta, *v = momentum;  // point and momenta as they are now
  REAL *next = scratch, *other = next + n, *p = other + n, *normal = p + n, *step = normal + n, *multiplier = step + n;
  NAME(Frame) frame = {.a = normal, .square = step, .work = multiplier, .excess = multiplier + m->s * m->s};
  int loose = 0;
  for (;; ops--, op++) {
    const int target = ops > 0 ? (int)op->target : -1, kicked = ops > 0 && (op->g != 0 || op->R != 0);
    const int turns = target == 1 && m->tall && m->r == m->s;
    const REAL own = ops > 0 ? (REAL)op->own : 0, h = ops > 0 ? (REAL)op->p : 0;
    if (target == 1 && h == 0) continue;
    if (target == 0 && frame.holds && !kicked && own != 0) {
      NAME(sum)(frame.a, own, frame.a, 0, 0, 0, n);
      if (frame.squared) NAME(sum)(frame.square, own * own, frame.square, 0, 0, 0, n);
      frame.length *= own * own, frame.row *= own * own, frame.ahead /= own;
      continue;
    }
    if (turns && NAME(joins)(m, &frame, h)) {
      frame.ahead += h;
      continue;
    }
    if (frame.ahead != 0) {
      NAME(rotate)(m, q, &frame, next);
      q = next, next = other, other = (REAL *)q;
    }
    if (target < 0) break;
    if (turns && NAME(begin)(m, q, v, h, &frame)) continue;
    if (frame.holds) {
      NAME(outer)(m, q, frame.a, 1, 0, p);
      v = p, frame.holds = loose = 0;
    }
    if (target == 0) {
      NAME(mix)(m, p, op, v, g, noise);
      v = p, loose |= kicked;
      continue;
    }
    if (target == 1) {
      NAME(combine)(m, next, 1, q, h, v);
      if (!NAME(onto)(m, next, q, normal, multiplier, step, 0)) return 0;
      NAME(combine)(m, p, 1, v, -1 / h, normal);
      v = p, loose = 1;
    } else {
      NAME(mix)(m, next, op, q, g, noise);
      if (!NAME(onto)(m, next, q, normal, multiplier, step, 1)) return 0;
    }
    q = next, next = other, other = (REAL *)q;
  }
  if (momentum && frame.holds) {
    NAME(outer)(m, q, frame.a, 1, 0, moved);
  } else if (momentum) {
    memmove(moved, v, n * sizeof(REAL));
    if (loose) {
      NAME(across)(m, q, moved, multiplier);
      NAME(outer)(m, q, multiplier, -1, 1, moved);
    }
  }
  memmove(out, q, n * sizeof(REAL));
  return 1;
}

// A stack of matrices, `ok` telling which could be moved. Large ones leave the threads to the products.
int64_t NAME(stiefel)(int64_t count, int64_t r, int64_t s, int64_t tall, void *const *theta, void *const *p,
                      void *const *g, void *const *noise, int64_t draws, void *out, void *moved, int64_t ops, const Op *op,
                      int64_t each, double tolerance, double scale, int64_t iterations, void *gemm, int64_t *ok,
                      void *scratch, int64_t room, int64_t threads, int64_t inner) {
  const NAME(Stiefel) m = {r, s, tall, (REAL)tolerance, (REAL)scale, iterations, inner, (NAME(Gemm) *)gemm};
  const int64_t n = r * s, fault = sound(op, ops * (each ? each : 1), 3, 1, p, g, draws);
  if (fault) return fault;
  if (!gemm || !theta || !out || !scratch || (p && !moved)) return NO_BUFFER;
  if (r < s || s < 1 || r > INT32_MAX || room < 5 * n + 2 * s * s) return BAD_SIZE;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
  for (int64_t i = 0; i < count; i++) {
    const REAL *drawn[DRAWS];
    const Op *own_ops = op + (each ? i % each : 0) * ops;  // of this replica
    for (int64_t o = 0; o < ops; o++)
      if (op[o].draw >= 0) drawn[op[o].draw] = (const REAL *)noise[op[o].draw] + i * n;
    REAL *own = (REAL *)scratch + omp_get_thread_num() * room;
    FLUSH
    ok[i] = NAME(matrix)(&m, theta[i], p ? p[i] : 0, g ? g[i] : 0, drawn, ops, own_ops, (REAL *)out + i * n,
                         moved ? (REAL *)moved + i * n : 0, own);
    RESTORE
  }
  return FINE;
}
