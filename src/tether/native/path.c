// Included by native.c, once for each REAL. Products with |w|^p, p = 1 or 2, in one pass over the weights and summed in
// double; and g/γ where γ is the product of a column and a row. edges.py holds the same mathematics.

// y_o += Σ_i |w_oi|^p x_i, four rows at a time: sums that do not wait for one another
CLONES static void NAME(four)(const REAL *w, const double *x, double *y, int64_t columns, int64_t square) {
  const REAL *a = w, *b = a + columns, *c = b + columns, *d = c + columns;
  double s = 0, t = 0, u = 0, v = 0;
  if (square) {
#pragma omp simd reduction(+ : s, t, u, v)
    for (int64_t i = 0; i < columns; i++) {
      s += (double)a[i] * (double)a[i] * x[i];
      t += (double)b[i] * (double)b[i] * x[i];
      u += (double)c[i] * (double)c[i] * x[i];
      v += (double)d[i] * (double)d[i] * x[i];
    }
  } else {
#pragma omp simd reduction(+ : s, t, u, v)
    for (int64_t i = 0; i < columns; i++) {
      s += fabs((double)a[i]) * x[i];
      t += fabs((double)b[i]) * x[i];
      u += fabs((double)c[i]) * x[i];
      v += fabs((double)d[i]) * x[i];
    }
  }
  y[0] += s, y[1] += t, y[2] += u, y[3] += v;
}

static double NAME(edge)(REAL w, int64_t square) { return square ? (double)w * (double)w : fabs((double)w); }

// y ← |w|^p x + |b|^p; b may be null
int64_t NAME(ahead)(const REAL *w, const REAL *b, const double *x, double *y, int64_t rows, int64_t columns,
                    int64_t square, int64_t threads) {
  if (rows && (!y || (columns && (!w || !x)))) return NO_BUFFER;
  for (int64_t o = 0; o < rows; o++) y[o] = b ? NAME(edge)(b[o], square) : 0;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t o = 0; o < rows / 4; o++) NAME(four)(w + 4 * o * columns, x, y + 4 * o, columns, square);
  for (int64_t o = rows / 4 * 4; o < rows; o++)
    for (int64_t i = 0; i < columns; i++) y[o] += NAME(edge)(w[o * columns + i], square) * x[i];
  return FINE;
}

// x_i += Σ_o |w_oi|^p y_o for the columns of w from here on, four rows at a time
CLONES static void NAME(strip)(const REAL *w, const double *y, double *x, int64_t rows, int64_t columns, int64_t width,
                               int64_t square) {
  int64_t o = 0;
  for (; o + 4 <= rows; o += 4) {
    const REAL *a = w + o * columns, *b = a + columns, *c = b + columns, *d = c + columns;
    const double s = y[o], t = y[o + 1], u = y[o + 2], v = y[o + 3];
    if (square) {
#pragma omp simd
      for (int64_t i = 0; i < width; i++)
        x[i] += (double)a[i] * (double)a[i] * s + (double)b[i] * (double)b[i] * t + (double)c[i] * (double)c[i] * u +
                (double)d[i] * (double)d[i] * v;
    } else {
#pragma omp simd
      for (int64_t i = 0; i < width; i++)
        x[i] += fabs((double)a[i]) * s + fabs((double)b[i]) * t + fabs((double)c[i]) * u + fabs((double)d[i]) * v;
    }
  }
  for (; o < rows; o++)
    for (int64_t i = 0; i < width; i++) x[i] += NAME(edge)(w[o * columns + i], square) * y[o];
}

int64_t NAME(back)(const REAL *w, const double *y, double *x, int64_t rows, int64_t columns, int64_t square,
                   int64_t threads) {
  if (columns && (!x || (rows && (!w || !y)))) return NO_BUFFER;
  const int64_t width = threads > 1 ? (columns + threads - 1) / threads : columns;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t at = 0; at < columns; at += width)
    NAME(strip)(w + at, y, x + at, rows, columns, columns - at < width ? columns - at : width, square);
  return FINE;
}

// to ← keep·to + times·g/(r_o c_i), and 0 for the quotient where the divisor is 0
CLONES static void NAME(quotient)(const REAL *g, REAL r, const REAL *c, REAL times, REAL keep, REAL *to,
                                  int64_t columns) {
  if (keep == 0) {
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) to[i] = r * c[i] > 0 ? times * g[i] / (r * c[i]) : 0;
  } else {
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) to[i] = keep * to[i] + (r * c[i] > 0 ? times * g[i] / (r * c[i]) : 0);
  }
}

int64_t NAME(divide)(const REAL *g, const REAL *r, const REAL *c, double times, double keep, REAL *to, int64_t rows,
                     int64_t columns, int64_t threads) {
  if (rows && columns && (!g || !c || !to)) return NO_BUFFER;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t o = 0; o < rows; o++)
    NAME(quotient)(g + o * columns, r ? r[o] : 1, c, (REAL)times, (REAL)keep, to + o * columns, columns);
  return FINE;
}
