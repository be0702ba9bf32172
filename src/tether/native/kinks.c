// Included by native.c, once for each REAL. Outputs of Linear → ReLU → Linear at many points of a line. A hidden unit is on
// or off according to the sign of (1 − α) z0 + α z1 and changes at most once, so that between its kinks every output is a
// parabola in α, whose three coefficients are kept up as units come and go. measure/kinks.py says what is computed; its
// reference is the network.

typedef struct {
  int64_t rows, units, outputs, points;
  const double *alpha;            // increasing
  const REAL *z0, *z1, *w0, *w1;  // rows × units, units × outputs
  const REAL *base;               // the coefficients with all units off, 3 × outputs
  REAL *out;                      // points × rows × outputs
} NAME(Line);

// Add units with pre-activations a and b, or take them away with those of opposite sign; four share a pass over the sums.
CLONES static void NAME(count)(const NAME(Line) *line, REAL *restrict s, const int64_t *unit, const REAL *a, const REAL *b) {
  int64_t n = line->outputs;
  REAL *restrict t = s + n, *restrict u = t + n;
  const REAL *v = line->w0, *w = line->w1;
  const REAL *v0 = v + unit[0] * n, *v1 = v + unit[1] * n, *v2 = v + unit[2] * n, *v3 = v + unit[3] * n;
  const REAL *w0 = w + unit[0] * n, *w1 = w + unit[1] * n, *w2 = w + unit[2] * n, *w3 = w + unit[3] * n;
  REAL a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3], b0 = b[0], b1 = b[1], b2 = b[2], b3 = b[3];
#pragma omp simd
  for (int64_t o = 0; o < n; o++) {
    s[o] += a0 * v0[o] + a1 * v1[o] + a2 * v2[o] + a3 * v3[o];
    t[o] += a0 * w0[o] + a1 * w1[o] + a2 * w2[o] + a3 * w3[o] + b0 * v0[o] + b1 * v1[o] + b2 * v2[o] + b3 * v3[o];
    u[o] += b0 * w0[o] + b1 * w1[o] + b2 * w2[o] + b3 * w3[o];
  }
}

CLONES static void NAME(parabola)(REAL *restrict y, const REAL *restrict s, REAL at, int64_t n) {
  const REAL *restrict t = s + n, *restrict u = t + n, p = (1 - at) * (1 - at), q = at * (1 - at), r = at * at;
  for (int64_t o = 0; o < n; o++) y[o] = p * s[o] + q * t[o] + r * u[o];
}

static void NAME(row)(const NAME(Line) *line, int64_t row, REAL *s, int64_t *first) {
  int64_t n = line->outputs, last = line->points - 1, *next = first + line->points;
  const REAL *z0 = line->z0 + row * line->units, *z1 = line->z1 + row * line->units;
  double pace = (double)last / (line->alpha[last] - line->alpha[0]);
  for (int64_t k = 0; k <= last; k++) first[k] = -1;
  for (int64_t o = 0; o < 3 * n; o++) s[o] = line->base[o];
  for (int64_t i = 0; i < line->units; i++) {
    double a = z0[i], b = z1[i], slope = b - a;
    int begins = a + line->alpha[0] * slope > 0, ends = a + line->alpha[last] * slope > 0;
    if (begins) next[2 * i] = first[0], first[0] = 2 * i;
    if (begins == ends) continue;
    const double place = (-a / slope - line->alpha[0]) * pace;  // right at once where the points lie evenly
    int64_t k = place >= (double)last ? last : place >= 1 ? 1 + (int64_t)place : 1;
    k = k > last ? last : k;
    while (k < last && (a + line->alpha[k] * slope > 0) == begins) k++;
    while (k > 1 && (a + line->alpha[k - 1] * slope > 0) == ends) k--;
    int64_t event = 2 * i + begins;  // odd: it goes
    next[event] = first[k], first[k] = event;
  }
  for (int64_t k = 0; k <= last; k++) {
    for (int64_t event = first[k]; event >= 0;) {
      int64_t unit[4] = {0};
      REAL a[4] = {0}, b[4] = {0};
      for (int64_t m = 0; m < 4 && event >= 0; m++, event = next[event]) {
        REAL sign = event % 2 ? -1 : 1;
        unit[m] = event / 2, a[m] = sign * z0[event / 2], b[m] = sign * z1[event / 2];
      }
      NAME(count)(line, s, unit, a, b);
    }
    NAME(parabola)(line->out + (k * line->rows + row) * n, s, (REAL)line->alpha[k], n);
  }
}

// Scratch for each thread: 3 × outputs reals, and points + 2 × units integers.
int64_t NAME(kinks)(int64_t rows, int64_t units, int64_t outputs, int64_t points, const double *alpha, const REAL *z0,
                    const REAL *z1, const REAL *w0, const REAL *w1, const REAL *base, REAL *out, REAL *sums,
                    int64_t *lists, int64_t threads) {
  if (points < 2) return BAD_SIZE;
  NAME(Line) line = {rows, units, outputs, points, alpha, z0, z1, w0, w1, base, out};
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; row++) {
    int64_t thread = omp_get_thread_num();
    NAME(row)(&line, row, sums + thread * 3 * outputs, lists + thread * (points + 2 * units));
  }
  return FINE;
}
