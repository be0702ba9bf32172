// Products with |w|^p, p = 1 or 2, in one pass over the weights and summed in double, and g/γ where γ is a product of rows
// and columns. edges.py compiles this file on first use and holds the same mathematics in Python.

#ifndef REAL
#include <math.h>
#include <stdint.h>

// The fastest version that the machine can run is chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(PLAIN)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#define GLUE(a, b) a##b
#define JOIN(a, b) GLUE(a, b)
#define NAME(x) JOIN(x, SUFFIX)

#define REAL float
#define SUFFIX _f32
#include "path.c"
#undef REAL
#undef SUFFIX
#define REAL double
#define SUFFIX _f64
#include "path.c"

#else

// y_o += Σ_i |w_oi|^p x_i
CLONES static void NAME(row)(const REAL *w, const double *x, double *y, int64_t columns, int64_t square) {
  double sum = 0;
  if (square) {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; i++) sum += (double)w[i] * (double)w[i] * x[i];
  } else {
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < columns; i++) sum += fabs((double)w[i]) * x[i];
  }
  *y += sum;
}

void NAME(ahead)(const REAL *w, const double *x, double *y, int64_t rows, int64_t columns, int64_t square,
                 int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t o = 0; o < rows; o++) NAME(row)(w + o * columns, x, y + o, columns, square);
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
  for (; o < rows; o++) {
    const REAL *a = w + o * columns;
    for (int64_t i = 0; i < width; i++) x[i] += (square ? (double)a[i] * (double)a[i] : fabs((double)a[i])) * y[o];
  }
}

void NAME(back)(const REAL *w, const double *y, double *x, int64_t rows, int64_t columns, int64_t square,
                int64_t threads) {
  const int64_t width = threads > 1 ? (columns + threads - 1) / threads : columns;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t at = 0; at < columns; at += width)
    NAME(strip)(w + at, y, x + at, rows, columns, columns - at < width ? columns - at : width, square);
}

// to ← keep·to + r_o c_i g_oi
CLONES static void NAME(spread)(const REAL *g, REAL r, const REAL *c, REAL keep, REAL *to, int64_t columns) {
  if (keep == 0) {
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) to[i] = g[i] * r * c[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) to[i] = keep * to[i] + g[i] * r * c[i];
  }
}

void NAME(scale)(const REAL *g, const REAL *r, const REAL *c, double keep, REAL *to, int64_t rows, int64_t columns,
                 int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t o = 0; o < rows; o++)
    NAME(spread)(g + o * columns, r[o], c, (REAL)keep, to + o * columns, columns);
}

#endif
