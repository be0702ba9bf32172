// Included by native.c, once for each REAL. Products with |w|^p, p = 1 or 2, in one pass over the weights and summed in
// double; and g/γ where γ is the product of a column and a row. Layers of `nets` networks lie one behind the other.
// edges.py holds the same mathematics.

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

INLINE double NAME(edge)(REAL w, int64_t square) { return square ? (double)w * (double)w : fabs((double)w); }

// The same for all rows of a layer with few inputs, their number being known where this is compiled
INLINE void NAME(thin_rows)(const REAL *w, const double *x, double *y, int64_t rows, const int in, int64_t square) {
  for (int64_t o = 0; o < rows; o++) {
    double sum = y[o];
    for (int i = 0; i < in; i++) sum += NAME(edge)(w[o * in + i], square) * x[i];
    y[o] = sum;
  }
}

CLONES static void NAME(thin)(const REAL *w, const double *x, double *y, int64_t rows, int64_t columns, int64_t square) {
  if (columns == 1) square ? NAME(thin_rows)(w, x, y, rows, 1, 1) : NAME(thin_rows)(w, x, y, rows, 1, 0);
  if (columns == 2) square ? NAME(thin_rows)(w, x, y, rows, 2, 1) : NAME(thin_rows)(w, x, y, rows, 2, 0);
  if (columns == 3) square ? NAME(thin_rows)(w, x, y, rows, 3, 1) : NAME(thin_rows)(w, x, y, rows, 3, 0);
  if (columns == 4) square ? NAME(thin_rows)(w, x, y, rows, 4, 1) : NAME(thin_rows)(w, x, y, rows, 4, 0);
}

// y ← |w|^p x + |b|^p for each of `nets` layers; b may be null
int64_t NAME(ahead)(const REAL *w, const REAL *b, const double *x, double *y, int64_t nets, int64_t rows, int64_t columns,
                    int64_t square, int64_t threads) {
  if (nets && rows && (!y || (columns && (!w || !x)))) return NO_BUFFER;
  const int64_t most = columns <= 4 ? CHUNK : 4;  // rows at a time
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t net = 0; net < nets; net++)
    for (int64_t o = 0; o < rows; o += most) {
      const REAL *from = w + (net * rows + o) * columns;
      const double *in = x + net * columns;
      const int64_t at = net * rows + o, some = rows - o < most ? rows - o : most;
      for (int64_t k = 0; k < some; k++) y[at + k] = b ? NAME(edge)(b[at + k], square) : 0;
      if (columns <= 4) NAME(thin)(from, in, y + at, some, columns, square);
      else if (some == 4) NAME(four)(from, in, y + at, columns, square);
      else
        for (int64_t k = 0; k < some; k++)
          for (int64_t i = 0; i < columns; i++) y[at + k] += NAME(edge)(from[k * columns + i], square) * in[i];
    }
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

int64_t NAME(back)(const REAL *w, const double *y, double *x, int64_t nets, int64_t rows, int64_t columns, int64_t square,
                   int64_t threads) {
  if (nets && columns && (!x || (rows && (!w || !y)))) return NO_BUFFER;
  const int64_t shares = nets < threads ? threads : 1, width = (columns + shares - 1) / shares;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t net = 0; net < nets; net++)
    for (int64_t share = 0; share < shares; share++) {
      const int64_t at = share * width, left = columns - at;
      if (left > 0)
        NAME(strip)(w + net * rows * columns + at, y + net * rows, x + net * columns + at, rows, columns,
                    left < width ? left : width, square);
    }
  return FINE;
}

// to ← keep·to + times·g/(r_o c_i), and 0 for the quotient where the divisor is 0; for some rows
INLINE void NAME(quotients)(const REAL *g, const REAL *r, const REAL *c, REAL times, REAL keep, REAL *to, int64_t rows,
                            int64_t columns) {
  for (int64_t o = 0; o < rows; o++)
    for (int64_t i = 0; i < columns; i++) {
      const REAL divisor = (r ? r[o] : 1) * c[i], part = divisor > 0 ? times * g[o * columns + i] / divisor : 0;
      to[o * columns + i] = keep == 0 ? part : keep * to[o * columns + i] + part;
    }
}

CLONES static void NAME(quotient)(const REAL *g, const REAL *r, const REAL *c, REAL times, REAL keep, REAL *to,
                                  int64_t rows, int64_t columns) {
  if (columns == 1) NAME(quotients)(g, r, c, times, keep, to, rows, 1);
  else if (columns == 2) NAME(quotients)(g, r, c, times, keep, to, rows, 2);
  else if (columns == 3) NAME(quotients)(g, r, c, times, keep, to, rows, 3);
  else if (columns == 4) NAME(quotients)(g, r, c, times, keep, to, rows, 4);
  else NAME(quotients)(g, r, c, times, keep, to, rows, columns);
}

int64_t NAME(divide)(const REAL *g, const REAL *r, const REAL *c, double times, double keep, REAL *to, int64_t nets,
                     int64_t rows, int64_t columns, int64_t threads) {
  if (nets && rows && columns && (!g || !c || !to)) return NO_BUFFER;
  const int64_t most = columns <= 4 ? CHUNK : 1;  // rows at a time
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t net = 0; net < nets; net++)
    for (int64_t o = 0; o < rows; o += most) {
      const int64_t at = net * rows + o, some = rows - o < most ? rows - o : most;
      NAME(quotient)(g + at * columns, r ? r + at : 0, c + net * columns, (REAL)times, (REAL)keep, to + at * columns,
                     some, columns);
    }
  return FINE;
}
