// What every kernel begins with. The files that native.c includes are compiled twice, for REAL float and double;
// NAME(x) is x_f32 or x_f64.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#define omp_get_num_threads() 1
#endif

// The fastest version that the machine can run is chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(PLAIN)
#define CLONED 1
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONED 0
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

// Momenta that die away become numbers so small that arithmetic with them is a hundred times slower: they are 0 here.
#ifdef __x86_64__
#include <xmmintrin.h>
#define FLUSH unsigned mode = _mm_getcsr(); _mm_setcsr(mode | 0x8040);
#define RESTORE _mm_setcsr(mode);
#else
#define FLUSH
#define RESTORE
#endif

#define GLUE(a, b) a##b
#define JOIN(a, b) GLUE(a, b)
#define NAME(x) JOIN(x, SUFFIX)
#define PI 3.14159265358979323846

enum { BLOCK = 1 << 16, CHUNK = 2048, DRAWS = 8, DEPTH = 64 };
enum { IDENTITY, RELU, LEAKY, TANH, SIGMOID };  // activations, in the order of mlp.py
enum { BINARY, SQUARE, CLASSES };               // losses
// What a kernel returns; where it is not FINE nothing has been written. native/__init__.py has the sentences.
enum { FINE = 0, NO_BUFFER = -1, BAD_OP = -2, BAD_INDEX = -3, BAD_SIZE = -4 };

// x ← own·x + p·p + g·g + R·R for x = p (target 0) or x = θ (target 1); draw says whose normals R are, −1 for none
typedef struct { int64_t target, draw; double own, p, g, R; } Op;

_Static_assert(sizeof(Op) == 48 && offsetof(Op, draw) == 8 && offsetof(Op, own) == 16 && offsetof(Op, p) == 24 &&
               offsetof(Op, g) == 32 && offsetof(Op, R) == 40, "native/__init__.py packs an op as two integers and four doubles");
_Static_assert(sizeof(void *) == 8, "native/__init__.py writes addresses as 64-bit integers");
_Static_assert(sizeof(float) == 4 && sizeof(double) == 8, "the bits of numbers are read");

