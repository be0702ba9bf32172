// Included by native.c, once for each REAL. The loss of many small perceptrons and its gradient, each replica on its own
// minibatch of one data set, with the products by torch's own BLAS. mlp.py says what it computes; autograd is its reference.

typedef struct {
  int64_t replicas, batch, layers;
  const int64_t *width, *activation;  // layers + 1 widths; the activation after each layer
  const double *slope;                // of a leaky activation
  void *const *weight, *const *bias, *const *weight_grad, *const *bias_grad;
  const void *x, *y;
  int64_t points, points_x, points_y;  // of them, and from the data of one replica to the next; 0: all share
  const int64_t *index;        // replicas × batch,
  int64_t next;                // from the points of one replica to those of the next
  int64_t loss;
  void *losses;
  void *gemm;
} NAME(Net);

// e^x − 1 by 2^k e^r − 1 with |r| ≤ log 2/2 and the series of e^r − 1, so that no digits are lost where x is small
INLINE REAL NAME(growth)(REAL x) {
  const REAL most = sizeof(REAL) == 4 ? 87 : 708;
  x = x > most ? most : x < -most ? -most : x;
  BITS bits;
  REAL k = NAME(nearest)(x * (REAL)1.44269504088896340736, &bits), scale;
  REAL r = x - k * (REAL)0.693145751953125 - k * (REAL)1.42860682030941723212e-6, sum = 1;
  for (int i = TERMS + 3 + TERMS / 3; i >= 2; i--) sum = 1 + sum * r / (REAL)i;
  bits = (bits + BIAS) << MANTISSA;  // only the last bits of k are left, and they are all of it
  memcpy(&scale, &bits, sizeof scale);
  return scale * (sum * r) + (scale - 1);
}

// Written so that nan stays nan, as in torch: a comparison with it is false.
CLONES static void NAME(activate)(REAL *z, int64_t n, int64_t kind, REAL slope) {
  if (kind == RELU) for (int64_t i = 0; i < n; i++) z[i] = z[i] < 0 ? 0 : z[i];
  if (kind == LEAKY) for (int64_t i = 0; i < n; i++) z[i] = z[i] > 0 ? z[i] : slope * z[i];
  if (kind == TANH) for (int64_t i = 0; i < n; i++) {
    REAL e = NAME(growth)(2 * z[i]);
    z[i] = e / (e + 2);
  }
  if (kind == SIGMOID) for (int64_t i = 0; i < n; i++) z[i] = 1 / (2 + NAME(growth)(-z[i]));
}

// d ← d·f′ with f′ from the value f(z) = a
CLONES static void NAME(differentiate)(REAL *d, const REAL *a, int64_t n, int64_t kind, REAL slope) {
  if (kind == RELU) for (int64_t i = 0; i < n; i++) d[i] = a[i] <= 0 ? 0 : d[i];
  if (kind == LEAKY) for (int64_t i = 0; i < n; i++) d[i] = a[i] > 0 ? d[i] : slope * d[i];
  if (kind == TANH) for (int64_t i = 0; i < n; i++) d[i] *= 1 - a[i] * a[i];
  if (kind == SIGMOID) for (int64_t i = 0; i < n; i++) d[i] *= a[i] * (1 - a[i]);
}

CLONES static void NAME(columns)(const REAL *d, int64_t batch, int64_t n, REAL *to) {
  memcpy(to, d, n * sizeof(REAL));
  for (int64_t i = 1; i < batch; i++)
    for (int64_t j = 0; j < n; j++) to[j] += d[i * n + j];
}

// log(1 + e^v) − vy, summed, and d ← its derivative times `share`, for the targets y in d: with e = e^(−|v|) both are exact to
// rounding for any v. log(1 + e) = 2 artanh(e/(2 + e)) by its series. The sum has an order that no instruction set changes.
CLONES static double NAME(binary)(const REAL *z, REAL *d, int64_t n, REAL share) {
  double sum = 0;
  for (int64_t from = 0; from < n; from += 64) {
    const int m = (int)(n - from < 64 ? n - from : 64);
    REAL own[64];
    for (int i = 0; i < m; i++) {
      const REAL v = z[from + i], y = d[from + i], e = 1 + NAME(growth)(v < 0 ? v : -v), t = e / (2 + e), t2 = t * t;
      REAL series = 2 / (REAL)(3 * TERMS - 1);
      for (int k = 3 * TERMS / 2 - 2; k >= 0; k--) series = series * t2 + 2 / (REAL)(2 * k + 1);
      own[i] = (v > 0 ? v : 0) - v * y + t * series;
      d[from + i] = ((v > 0 ? 1 : e) / (1 + e) - y) * share;
    }
    for (int i = 0; i < m; i++) sum += own[i];
  }
  return sum;
}

// The mean loss of a batch, and d ← its derivative with respect to the outputs z.
static double NAME(lose)(const NAME(Net) *net, int64_t replica, const REAL *z, REAL *d, int64_t n) {
  const int64_t *index = net->index + replica * net->next;
  double sum = 0, share = 1.0 / (double)(net->loss == CLASSES ? net->batch : net->batch * n);
  for (int64_t i = 0; i < net->batch; i++) {
    const int64_t at = replica * net->points_y + index[i];
    const REAL *out = z + i * n;
    if (net->loss == CLASSES) {
      const int64_t label = ((const int64_t *)net->y)[at];
      double most = out[0], total = 0;
      for (int64_t j = 1; j < n; j++) most = out[j] > most ? out[j] : most;
      for (int64_t j = 0; j < n; j++) total += exp((double)out[j] - most);
      sum += log(total) + most - (double)out[label];
      for (int64_t j = 0; j < n; j++)
        d[i * n + j] = (REAL)((exp((double)out[j] - most) / total - (j == label)) * share);
      continue;
    }
    const REAL *target = (const REAL *)net->y + at * n;
    for (int64_t j = 0; j < n; j++) {
      const double v = out[j], y = target[j];
      sum += (v - y) * (v - y);
      d[i * n + j] = net->loss == SQUARE ? (REAL)(2 * (v - y) * share) : target[j];
    }
  }
  return share * (net->loss == BINARY ? NAME(binary)(z, d, net->batch * n, (REAL)share) : sum);
}

// Layers with few inputs, or one output, are too thin for BLAS: plain loops over the longer side.
// z ← z + xWᵀ, dW ← dᵀx, dx ← dW for W of out × in, `in` being known where this is compiled
INLINE void NAME(few_forward)(
    const REAL *restrict w, const REAL *restrict x, REAL *restrict z, int64_t batch, int64_t out, const int in) {
  for (int64_t b = 0; b < batch; b++, x += in, z += out) {
    REAL own[4];
    for (int i = 0; i < in; i++) own[i] = x[i];
    for (int64_t o = 0; o < out; o++) {
      REAL sum = z[o];
      for (int i = 0; i < in; i++) sum += w[o * in + i] * own[i];
      z[o] = sum;
    }
  }
}

INLINE void NAME(few_weights)(
    const REAL *restrict d, const REAL *restrict x, REAL *restrict to, int64_t batch, int64_t out, const int in) {
  for (int64_t b = 0; b < batch; b++, x += in, d += out) {
    REAL own[4];
    for (int i = 0; i < in; i++) own[i] = x[i];
    if (b == 0) for (int64_t o = 0; o < out; o++)
      for (int i = 0; i < in; i++) to[o * in + i] = d[o] * own[i];
    else for (int64_t o = 0; o < out; o++)
      for (int i = 0; i < in; i++) to[o * in + i] += d[o] * own[i];
  }
}

CLONES static void NAME(forward)(NAME(Gemm) *gemm, const REAL *w, const REAL *x, REAL *z, int64_t batch, int64_t out,
                                 int64_t in) {
  const REAL one = 1;
  const int M = (int)out, N = (int)batch, K = (int)in;
  if (in == 1) NAME(few_forward)(w, x, z, batch, out, 1);
  else if (in == 2) NAME(few_forward)(w, x, z, batch, out, 2);
  else if (in == 3) NAME(few_forward)(w, x, z, batch, out, 3);
  else if (in == 4) NAME(few_forward)(w, x, z, batch, out, 4);
  else if (out == 1) for (int64_t b = 0; b < batch; b++) z[b] += NAME(dot)(w, x + b * in, in);
  else gemm("T", "N", &M, &N, &K, &one, w, &K, x, &K, &one, z, &M);
}

CLONES static void NAME(backward)(NAME(Gemm) *gemm, const REAL *d, const REAL *x, REAL *to, int64_t batch, int64_t out,
                                  int64_t in) {
  const REAL one = 1, zero = 0;
  const int M = (int)in, N = (int)out, K = (int)batch;
  if (in == 1) NAME(few_weights)(d, x, to, batch, out, 1);
  else if (in == 2) NAME(few_weights)(d, x, to, batch, out, 2);
  else if (in == 3) NAME(few_weights)(d, x, to, batch, out, 3);
  else if (in == 4) NAME(few_weights)(d, x, to, batch, out, 4);
  else if (out == 1) {
    for (int64_t i = 0; i < in; i++) to[i] = d[0] * x[i];
    for (int64_t b = 1; b < batch; b++)
      for (int64_t i = 0; i < in; i++) to[i] += d[b] * x[b * in + i];
  } else gemm("N", "T", &M, &N, &K, &one, x, &M, d, &N, &zero, to, &M);
}

CLONES static void NAME(inward)(NAME(Gemm) *gemm, const REAL *w, const REAL *d, REAL *to, int64_t batch, int64_t out,
                                int64_t in) {
  const REAL one = 1, zero = 0;
  const int M = (int)in, N = (int)batch, K = (int)out;
  if (out == 1) {
    for (int64_t b = 0; b < batch; b++)
      for (int64_t i = 0; i < in; i++) to[b * in + i] = d[b] * w[i];
  } else gemm("N", "N", &M, &N, &K, &one, w, &M, d, &K, &zero, to, &M);
}

// A few numbers are copied before a call would have begun.
INLINE void NAME(copy)(REAL *restrict to, const REAL *restrict from, int64_t n) {
  if (n > 4) memcpy(to, from, n * sizeof(REAL));
  else for (int64_t i = 0; i < n; i++) to[i] = from[i];
}

// One replica; returns 1 if its loss or a gradient of it is not finite.
static int NAME(replica)(const NAME(Net) *net, int64_t replica, REAL *scratch) {
  NAME(Gemm) *gemm = (NAME(Gemm) *)net->gemm;
  const int64_t layers = net->layers, batch = net->batch;
  const int64_t *width = net->width;
  REAL *values[DEPTH], *d, *before;
  for (int64_t l = 0; l <= layers; l++) {
    values[l] = scratch;
    scratch += batch * width[l];
  }
  int64_t widest = 0;
  for (int64_t l = 0; l <= layers; l++) widest = width[l] > widest ? width[l] : widest;
  d = scratch;
  before = scratch + batch * widest;
  const int64_t *index = net->index + replica * net->next;
  for (int64_t i = 0; i < batch; i++)
    NAME(copy)(values[0] + i * width[0], (const REAL *)net->x + (replica * net->points_x + index[i]) * width[0], width[0]);
  for (int64_t l = 0; l < layers; l++) {
    const int64_t in = width[l], out = width[l + 1];
    const REAL *weight = (const REAL *)net->weight[l] + replica * in * out;
    for (int64_t i = 0; i < batch; i++) {
      REAL *row = values[l + 1] + i * out;
      if (net->bias[l]) NAME(copy)(row, (const REAL *)net->bias[l] + replica * out, out);
      else memset(row, 0, out * sizeof(REAL));
    }
    NAME(forward)(gemm, weight, values[l], values[l + 1], batch, out, in);
    NAME(activate)(values[l + 1], batch * out, net->activation[l], (REAL)net->slope[l]);
  }
  const double loss = ((double *)net->losses)[replica] = NAME(lose)(net, replica, values[layers], d, width[layers]);
  int faulty = !(loss - loss == 0);
  if (!net->weight_grad) return faulty;
  NAME(differentiate)(d, values[layers], batch * width[layers], net->activation[layers - 1], (REAL)net->slope[layers - 1]);
  for (int64_t l = layers - 1; l >= 0; l--) {
    const int64_t in = width[l], out = width[l + 1];
    const REAL *weight = (const REAL *)net->weight[l] + replica * in * out;
    REAL *to = (REAL *)net->weight_grad[l] + replica * in * out;
    NAME(backward)(gemm, d, values[l], to, batch, out, in);
    faulty |= NAME(infinite)(to, in * out);
    if (net->bias[l]) {
      to = (REAL *)net->bias_grad[l] + replica * out;
      NAME(columns)(d, batch, out, to);
      faulty |= NAME(infinite)(to, out);
    }
    if (l == 0) break;
    NAME(inward)(gemm, weight, d, before, batch, out, in);
    NAME(differentiate)(before, values[l], batch * in, net->activation[l - 1], (REAL)net->slope[l - 1]);
    REAL *old = d;
    d = before;
    before = old;
  }
  return faulty;
}

// Do all indices, and the labels they lead to, exist?
static int NAME(within_reach)(const NAME(Net) *net) {
  const int64_t classes = net->width[net->layers];
  int64_t bad = 0;
  for (int64_t i = 0; i < net->replicas; i++) {
    const int64_t *index = net->index + i * net->next, *y = (const int64_t *)net->y + i * net->points_y;
    for (int64_t b = 0; b < net->batch; b++) bad |= index[b] < 0 || index[b] >= net->points;
    for (int64_t b = 0; b < net->batch && !bad && net->loss == CLASSES; b++) bad = y[index[b]] < 0 || y[index[b]] >= classes;
  }
  return !bad;
}

// Returns how many replicas have a loss or a gradient that is not finite.
int64_t NAME(gradients)(int64_t replicas, int64_t batch, int64_t layers, const int64_t *width, const int64_t *activation,
                        const double *slope, void *const *weight, void *const *bias, void *const *weight_grad,
                        void *const *bias_grad, const void *x, const void *y, int64_t points, int64_t points_x,
                        int64_t points_y, const int64_t *index, int64_t next, int64_t loss, void *losses, void *gemm, void *scratch,
                        int64_t room, int64_t threads) {
  const NAME(Net) net = {replicas, batch, layers, width, activation, slope, weight, bias, weight_grad, bias_grad,
                         x, y, points, points_x, points_y, index, next, loss, losses, gemm};
  if (layers < 1 || layers >= DEPTH || batch < 1 || batch > INT32_MAX || next < 0) return BAD_SIZE;
  if (!gemm || !x || !y || !index || !losses || !scratch || (weight_grad && !bias_grad)) return NO_BUFFER;
  if (!NAME(within_reach)(&net)) return BAD_INDEX;
  int64_t faulty = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(+ : faulty)
  for (int64_t i = 0; i < replicas; i++) {
    FLUSH
    faulty += NAME(replica)(&net, i, (REAL *)scratch + omp_get_thread_num() * room);
    RESTORE
  }
  return faulty;
}
