// Included by native.c, once for each REAL. A part on circles or spheres, in one pass over memory. Ops as in kernel.h, with
// g and R seen along the surface, target 1 the drift for a time p, and target 2 a step of the surrounding space, projected.
// R comes ready made. surfaces/circle.py and surfaces/sphere.py hold the same mathematics.

typedef struct {
  int64_t rows, columns, slack, ops;  // columns 0: circles, one weight a row
  REAL *theta, *q, *p;
  const REAL *g;
  const double *radius;
  void *const *noise;
  const Op *op;
} NAME(Bounded);

enum { NAME(TILE) = 512 };  // weights whose sines and cosines are held at a time
static const REAL NAME(nothing)[NAME(TILE)] = {0};  // where there is no gradient

// The angle of the point (b, a) in units of π: atan2(a, b)/π.
INLINE REAL NAME(angle)(REAL a, REAL b) {
  REAL x = a < 0 ? -a : a, y = b < 0 ? -b : b, low = x < y ? x : y, high = x < y ? y : x;
  REAL t = low / (high + (REAL)1e-37);  // 0 at the origin
  REAL steep = t > (REAL)0.41421356237309504880 ? 1 : 0;  // tan π/8: taken from π/4
  REAL u = (t - steep) / (1 + t * steep), u2 = u * u, series = 0;
  for (int i = 2 * TERMS; i >= 0; i--) series = series * -u2 + 1 / (REAL)(2 * i + 1);
  REAL z = u * series * (REAL)(1 / PI) + (REAL)0.25 * steep;
  z = x < y ? z : (REAL)0.5 - z;
  z = b < 0 ? 1 - z : z;
  z = a < 0 ? -z : z;
  return x + y == x + y ? z : x + y;  // comparisons would hide what is no number
}

// The same angle within ±π. Beyond one turn per rounding error it says nothing any more: 0, or nan where it was not finite.
INLINE REAL NAME(within)(REAL q) {
  BITS unused;
  const REAL size = q < 0 ? -q : q, turned = q - (REAL)(2 * PI) * NAME(nearest)(q * (REAL)(0.5 / PI), &unused);
  return size < (REAL)((BITS)1 << MANTISSA) ? turned : q - q;
}

// Somebody else may have written to θ: where it is not that of its point, the point follows, its slack on the same side.
// `follow` in the surfaces' files; EDGE and SLIGHTLY as there.
#define EDGE ((REAL)(1 - 1e-3))
#define SLIGHTLY ((REAL)1e-6)
#define EPS ((REAL)(sizeof(REAL) == 4 ? 0x1p-23 : 0x1p-52))

INLINE int NAME(near)(REAL theta, REAL own, REAL slip) {
  const REAL off = theta < own ? own - theta : theta - own, size = theta < 0 ? -theta : theta;
  return off <= EPS * size + slip;
}

INLINE void NAME(follow_circle)(REAL theta, REAL r, REAL *q, REAL *sine, REAL *cosine) {
  const REAL slip = 8 * EPS * r;
  if (NAME(near)(theta, r * *sine, slip)) return;
  REAL s = theta / r, size = s < 0 ? -s : s;
  const REAL most = size > 1 + SLIGHTLY ? EDGE : 1 - 4 * EPS;
  s = s > most ? most : s < -most ? -most : s;
  const REAL c = ROOT(1 - s * s);
  *sine = s;
  *cosine = *cosine < 0 ? -c : c;
  *q = (REAL)PI * NAME(angle)(*sine, *cosine);
}

// θ = r sin q, ξ = r cos q for every weight; the momentum along the circle is p.
CLONES static void NAME(circles)(const NAME(Bounded) *task, int64_t from, int64_t to) {
  REAL sine[NAME(TILE)], cosine[NAME(TILE)];
  const REAL r = (REAL)task->radius[0], turns = (REAL)(1 / PI), per = (REAL)(1 / task->radius[0]);
  for (int64_t at = from; at < to; at += NAME(TILE)) {
    const int64_t m = to - at < NAME(TILE) ? to - at : NAME(TILE);
    REAL *theta = task->theta + at, *q = task->q + at, *p = task->p ? task->p + at : 0;
    const REAL *g = task->g ? task->g + at : 0;
    int known = 1, lost = 0;  // known: are sine and cosine those of q as it is now?
    for (int64_t i = 0; i < m; i++) q[i] = NAME(within)(q[i]);
    for (int64_t i = 0; i < m; i++) NAME(turn)(q[i] * turns, &sine[i], &cosine[i]);
    for (int64_t i = 0; i < m; i++) lost |= !NAME(near)(theta[i], r * sine[i], 8 * EPS * r);
    if (lost) for (int64_t i = 0; i < m; i++) NAME(follow_circle)(theta[i], r, &q[i], &sine[i], &cosine[i]);
    for (int64_t o = 0; o <= task->ops; o++) {
      const int last = o == task->ops;
      const Op op = last ? (Op){0} : task->op[o];
      if (!known && (last || op.target == 2 || (op.target == 0 && op.g != 0))) {
        for (int64_t i = 0; i < m; i++) q[i] = NAME(within)(q[i]);
        for (int64_t i = 0; i < m; i++) NAME(turn)(q[i] * turns, &sine[i], &cosine[i]);
        known = 1;
      }
      if (last) break;
      const REAL own = (REAL)op.own, cp = (REAL)op.p * per, cg = (REAL)op.g, cR = (REAL)op.R;
      const REAL *R = op.draw >= 0 ? (const REAL *)task->noise[op.draw] : 0;
      known = known && op.target == 0;
      if (op.target == 0) {
        for (int64_t i = 0; i < m; i++) p[i] *= own;
        if (op.g != 0) for (int64_t i = 0; i < m; i++) p[i] += cg * cosine[i] * g[i];
        if (R) for (int64_t i = 0; i < m; i++) p[i] += cR * R[at + i];
      } else if (op.target == 1) {
        for (int64_t i = 0; i < m; i++) q[i] += cp * p[i];
      } else {
        const REAL *push = op.g != 0 ? g : NAME(nothing), *pair = R ? R + 2 * at : 0;
        if (R) for (int64_t i = 0; i < m; i++)
          q[i] = (REAL)PI * NAME(angle)(r * sine[i] + cg * push[i] + cR * pair[2 * i], r * cosine[i] + cR * pair[2 * i + 1]);
        else for (int64_t i = 0; i < m; i++) q[i] = (REAL)PI * NAME(angle)(r * sine[i] + cg * push[i], r * cosine[i]);
      }
    }
    for (int64_t i = 0; i < m; i++) theta[i] = r * sine[i];
  }
}

INLINE REAL NAME(dot)(const REAL *x, const REAL *y, int64_t n) {
  REAL sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

// |x|, also where its square overflows or vanishes
INLINE REAL NAME(norm)(const REAL *x, int64_t n) {
  REAL squared = NAME(dot)(x, x, n), most = 0, sum = 0;
  if (squared > (REAL)1e-30 && squared < (REAL)1e30) return ROOT(squared);
  if (squared != squared) return squared;
  for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : -x[i] > most ? -x[i] : most;
  if (most == 0) return 0;
  for (int64_t i = 0; i < n; i++) sum += (x[i] / most) * (x[i] / most);
  return most * ROOT(sum);
}

static void NAME(follow_sphere)(const REAL *theta, REAL r, REAL *q, int64_t columns) {
  int lost = 0;
  for (int64_t i = 0; i < columns; i++) lost |= !NAME(near)(theta[i], q[i], 0);
  if (!lost) return;
  const REAL size = NAME(norm)(theta, columns), most = r * (size > r * (1 + SLIGHTLY) ? EDGE : 1 - 4 * EPS);
  const REAL scale = size > most ? most / size : 1, share = size * scale / r;
  const int below = q[columns] < 0;
  for (int64_t i = 0; i < columns; i++) q[i] = theta[i] * scale;
  q[columns] = (below ? -r : r) * ROOT(1 - share * share);
  const REAL whole = r / NAME(norm)(q, columns + 1);
  for (int64_t i = 0; i <= columns; i++) q[i] *= whole;
}

// Rows with their slack, q of length r; the momentum p is orthogonal to q.
CLONES static void NAME(spheres)(const NAME(Bounded) *task, int64_t from, int64_t to) {
  const int64_t columns = task->columns, width = columns + task->slack;
  for (int64_t row = from; row < to; row++) {
    REAL *q = task->q + row * width, *p = task->p ? task->p + row * width : 0;
    const REAL *g = task->g ? task->g + row * columns : 0;
    const REAL r = (REAL)task->radius[row];
    if (task->slack) NAME(follow_sphere)(task->theta + row * columns, r, q, columns);
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
        if (op.g != 0) for (int64_t i = 0; i < columns; i++) q[i] += cg * g[i];
        if (R) for (int64_t i = 0; i < width; i++) q[i] += cR * R[i];
        REAL scale = r / NAME(norm)(q, width);
        for (int64_t i = 0; i < width; i++) q[i] *= scale;
      }
    }
    memcpy(task->theta + row * columns, q, columns * sizeof(REAL));
  }
}

int64_t NAME(bounded)(int64_t rows, int64_t columns, int64_t slack, void *theta, void *q, void *p, const void *g,
                      const double *radius, void *const *noise, const int64_t *length, int64_t draws, int64_t ops,
                      const Op *op, int64_t threads) {
  const NAME(Bounded) task = {rows, columns, slack, ops, theta, q, p, g, radius, noise, op};
  const int64_t unit = columns ? 16 : CHUNK, pieces = (rows + unit - 1) / unit, fault = sound(op, ops, 3, 1, p, g, draws);
  if (fault) return fault;
  if (!radius || (rows && (!theta || !q))) return NO_BUFFER;
  for (int64_t o = 0; o < ops; o++) {  // along a circle noise is one number, around it two
    const int64_t width = columns ? columns + slack : op[o].target == 2 ? 2 : 1;
    if (op[o].draw >= 0 && length[op[o].draw] < rows * width) return BAD_SIZE;
  }
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < pieces; i++) {
    int64_t from = i * unit, to = from + unit < rows ? from + unit : rows;
    FLUSH
    if (columns) NAME(spheres)(&task, from, to);
    else NAME(circles)(&task, from, to);
    RESTORE
  }
  return FINE;
}
