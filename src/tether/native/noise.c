// Included by native.c, once for each REAL: normals from a stream of random words. noise.py holds the same mathematics.

// The whole number nearest to x, |x| < 2^(MANTISSA − 1), and its last bits: next to so large a number there is no room for
// a fraction. No conversion to an integer, which nan and inf do not have.
INLINE REAL NAME(nearest)(REAL x, BITS *bits) {
  const REAL large = (REAL)((BITS)3 << (MANTISSA - 1)), sum = x + large;
  memcpy(bits, &sum, sizeof sum);
  return sum - large;
}

// sin πx and cos πx for |x| < 2^(MANTISSA − 2), by their series on |πx| ≤ π/4: TERMS suffice for REAL.
INLINE void NAME(turn)(REAL x, REAL *sine, REAL *cosine) {
  BITS quarter;
  REAL y = (REAL)PI * (x - NAME(nearest)(2 * x, &quarter) / 2), y2 = y * y, c = 1, d = 1;
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
// log by 2 artanh((m − 1)/(m + 1)), its series to TERMS. The words of the stream lie where the normals will: `out` has
// room for an even number of them, and is aligned as words are.
INLINE void NAME(normals)(REAL *out, int64_t n, uint64_t s[4]) {
  const int64_t k = (n + 1) / 2;
  const REAL unit = (REAL)(sizeof(REAL) == 4 ? 0x1p-31 : 0x1p-63);
  REAL *restrict first = out, *restrict second = out + k;
  words((Raw *)out, (int64_t)(2 * k * sizeof(REAL) / 8), s);
  for (int64_t e = 0; e < k; e++) {
    SIGNED drawn, other;
    memcpy(&drawn, first + e, sizeof drawn);
    memcpy(&other, second + e, sizeof other);
    REAL i = (REAL)drawn, u = ((i < 0 ? -i : i) + (REAL)0.25) * unit;
    BITS bits;
    memcpy(&bits, &u, sizeof bits);
    SIGNED exponent = (SIGNED)(bits >> MANTISSA) - BIAS;
    bits = (bits & (((BITS)1 << MANTISSA) - 1)) | (BITS)BIAS << MANTISSA;
    REAL m;
    memcpy(&m, &bits, sizeof m);
    int big = m > (REAL)1.41421356237309504880;
    m = big ? m / 2 : m;
    REAL power = (REAL)(exponent + big);
    REAL t = (m - 1) / (m + 1), t2 = t * t, artanh = 1 / (REAL)(2 * TERMS + 1);
    for (int q = TERMS - 1; q >= 0; q--) artanh = artanh * t2 + 1 / (REAL)(2 * q + 1);
    REAL squared = -2 * (power * (REAL)0.69314718055994530942 + 2 * t * artanh);
    REAL r = ROOT(squared > 0 ? squared : 0), ss, cc;
    NAME(turn)((REAL)other * unit, &ss, &cc);
    first[e] = r * cc;
    second[e] = r * ss;
  }
}
