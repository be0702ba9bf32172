// Included by native.c, once for each REAL: normals from the words of philox.h. noise.py holds the same mathematics.

INLINE BITS NAME(bits_of)(REAL x) {
  BITS bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

INLINE REAL NAME(of_bits)(BITS bits) {
  REAL x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The whole number nearest to x, |x| < 2^(MANTISSA − 1), and its last bits: next to so large a number there is no room for
// a fraction. No conversion to an integer, which nan and inf do not have.
INLINE REAL NAME(nearest)(REAL x, BITS *bits) {
  const REAL large = (REAL)((BITS)3 << (MANTISSA - 1)), sum = x + large;
  *bits = NAME(bits_of)(sum);
  return sum - large;
}

// sin πx and cos πx for |x| < 2^(MANTISSA − 2), by their series on |πx| ≤ π/4: TERMS suffice for REAL.
INLINE void NAME(turn)(REAL x, REAL *sine, REAL *cosine) {
  static const double even[] = {1, -1 / 2., 1 / 24., -1 / 720., 1 / 40320., -1 / 3628800., 1 / 479001600.,
                                -1 / 87178291200., 1 / 20922789888000., -1 / 6402373705728000.};
  static const double odd[] = {1, -1 / 6., 1 / 120., -1 / 5040., 1 / 362880., -1 / 39916800., 1 / 6227020800.,
                               -1 / 1307674368000., 1 / 355687428096000., -1 / 121645100408832000.};
  const BITS sign = (BITS)1 << (8 * sizeof(BITS) - 1);
  BITS quarter;
  REAL twice = x + x, y = (REAL)(PI / 2) * (twice - NAME(nearest)(twice, &quarter)), y2 = y * y;
  REAL c = (REAL)even[TERMS - 1], d = (REAL)odd[TERMS - 1];
  for (int i = TERMS - 2; i >= 0; i--) {
    c = c * y2 + (REAL)even[i];
    d = d * y2 + (REAL)odd[i];
  }
  d *= y;
  REAL cc = (quarter & 1) ? d : c, ss = (quarter & 1) ? c : d;
  *cosine = NAME(of_bits)(NAME(bits_of)(cc) ^ ((quarter + 1) << (8 * sizeof(BITS) - 2) & sign));
  *sine = NAME(of_bits)(NAME(bits_of)(ss) ^ (quarter << (8 * sizeof(BITS) - 2) & sign));
}

// r = √(−2 log u), u = (⌊word/2⌋ + ½)/2³¹ = 2^power m with √½ ≤ m < √2; log m = 2 artanh((m − 1)/(m + 1)) by TERMS of its series.
INLINE REAL NAME(radius)(uint32_t word) {
  const REAL u = ((REAL)(int32_t)(word >> 1) + (REAL)0.5) * (REAL)0x1p-31;
  const BITS low = NAME(bits_of)((REAL)0.70710678118654752440), one = (BITS)BIAS << MANTISSA;
  const BITS bits = NAME(bits_of)(u) + (one - low), large = (BITS)(BIAS + MANTISSA) << MANTISSA;
  // behind the digits of 2^MANTISSA an integer is a number
  const REAL power = NAME(of_bits)(bits >> MANTISSA | large) - (REAL)(((BITS)1 << MANTISSA) + BIAS);
  const REAL m = NAME(of_bits)((bits & (((BITS)1 << MANTISSA) - 1)) + low), t = (m - 1) / (m + 1), t2 = t * t;
  REAL series = -4 / (REAL)(2 * TERMS - 1);
  for (int q = TERMS - 2; q >= 0; q--) series = series * t2 - 4 / (REAL)(2 * q + 1);
  return ROOT(power * (REAL)-1.38629436111989061883 + t * series);
}

// Box–Muller for the entries of up to TILES tiles: rows 0 and 1 of a tile are r cos φ and r sin φ of its words 0 and 1, rows
// 2 and 3 of its words 2 and 3, φ = πj/2³¹. Two rows at a time, which is as wide as vectors are; then each is put in its place.
INLINE void NAME(normals)(REAL *restrict out, const Tile *tile, int64_t tiles, int64_t level, uint32_t step, uint32_t draw) {
  enum { WIDE = 2 * LANES };
  _Alignas(64) uint32_t word[SPAN];
  _Alignas(64) REAL cosine[SPAN / 2], sine[SPAN / 2];
  philox(level, word, BY_KIND, tile, tiles, step, draw);
  for (int64_t at = 0; at < tiles * WIDE; at += WIDE)
    for (int e = 0; e < WIDE; e++) {
      REAL r = NAME(radius)(word[at + e]), ss, cc;
      NAME(turn)((REAL)(int32_t)word[SPAN / 2 + at + e] * (REAL)0x1p-31, &ss, &cc);
      cosine[at + e] = r * cc;
      sine[at + e] = r * ss;
    }
  for (int64_t row = 0; row < 2 * tiles; row++, out += 2 * LANES) {
    memcpy(out, cosine + row * LANES, LANES * sizeof(REAL));
    memcpy(out + LANES, sine + row * LANES, LANES * sizeof(REAL));
  }
}
