// Included by native.c, once for each REAL: pieces of tensors that go through their ops together. A batch has as many as
// SPAN normals suffice for: one where tensors are large, many where they are small, so that all their noise is made at once.

// Some entries of one replica of a tensor, the ops they go through, where their normals lie, and where to add their pᵀp
typedef struct { REAL *theta, *p; const REAL *g; const Op *op; int64_t n, at; double *sum; } NAME(Piece);

typedef struct {
  const Task *task;
  int64_t ops, pieces, tiles, square;  // square: is pᵀp asked for?
  NAME(Piece) piece[TILES];
  Tile tile[TILES];
} NAME(Batch);

INLINE void NAME(update)(const NAME(Piece) x, const Op op, const REAL *R) {
  REAL *to = op.target ? x.theta : x.p;
  const REAL own = (REAL)op.own, cp = (REAL)op.p, cg = (REAL)op.g, cR = (REAL)op.R;
  if (op.own == 0) for (int64_t i = 0; i < x.n; i++) to[i] = 0;
  else if (op.own != 1) for (int64_t i = 0; i < x.n; i++) to[i] *= own;
  if (op.p != 0) for (int64_t i = 0; i < x.n; i++) to[i] += cp * x.p[i];
  if (op.g != 0) for (int64_t i = 0; i < x.n; i++) to[i] += cg * x.g[i];
  if (op.R != 0) for (int64_t i = 0; i < x.n; i++) to[i] += cR * R[i];
}

// pᵀp in an order of its own, which no instruction set changes
INLINE double NAME(squared)(const REAL *p, int64_t n) {
  double lane[8] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t j = 0; j < 8; j++) lane[j] += (double)p[i + j] * (double)p[i + j];
  for (; i < n; i++) lane[i % 8] += (double)p[i] * (double)p[i];
  for (int64_t j = 0; j < 8; j++) sum += lane[j];
  return sum;
}

// Take all pieces through their ops, which differ in coefficients only, and empty the batch.
CLONES static void NAME(carry_out)(NAME(Batch) *batch) {
  _Alignas(64) REAL R[SPAN];
  const Task *task = batch->task;
  if (!batch->pieces) return;
  for (int64_t o = 0, held = -1; o < batch->ops; o++) {
    const int64_t draw = batch->piece[0].op[o].draw;
    if (draw >= 0 && draw != held) {
      NAME(normals)(R, batch->tile, batch->tiles, task->level, (uint32_t)task->step, (uint32_t)task->draw[draw]);
      held = draw;
    }
    for (int64_t i = 0; i < batch->pieces; i++)
      NAME(update)(batch->piece[i], batch->piece[i].op[o], R + batch->piece[i].at);
  }
  for (int64_t i = 0; batch->square && i < batch->pieces; i++)
    *batch->piece[i].sum += NAME(squared)(batch->piece[i].p, batch->piece[i].n);
  batch->pieces = batch->tiles = 0;
}

// Entries `at` to `end` of one replica of a tensor; where a piece ends does not depend on what the batch holds already.
static void NAME(add)(NAME(Batch) *batch, const Op *op, int64_t t, int64_t row, int64_t block, int64_t at, int64_t end) {
  const Task *task = batch->task;
  double *sum = task->sums ? task->sums + row * task->blocks + block : 0;
  if (sum) *sum = 0;
  const int64_t from = row * task->size[t], first = task->first ? task->first[t] : 0;
  const uint32_t replica = task->replica ? (uint32_t)task->replica[row] : 0;
  const uint64_t key = task->key ? task->key[t] : 0;
  for (int64_t n; at < end; at += n) {
    const int64_t e = first + at, phase = e % TILE, room = SPAN - e % SPAN;
    n = end - at < room ? end - at : room;
    const int64_t tiles = (phase + n + TILE - 1) / TILE;
    if (batch->tiles + tiles > TILES) NAME(carry_out)(batch);
    batch->piece[batch->pieces++] = (NAME(Piece)){
        task->theta ? (REAL *)task->theta[t] + from + at : 0, task->p ? (REAL *)task->p[t] + from + at : 0,
        task->g ? (const REAL *)task->g[t] + from + at : 0, op, n, batch->tiles * TILE + phase, sum};
    for (int64_t i = 0; i < tiles; i++) batch->tile[batch->tiles++] = tile_of((uint64_t)(e + i * TILE), key, replica);
  }
}
