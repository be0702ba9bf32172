// What every kernel begins with. A file is included twice, for REAL float and double; NAME(x) is x_f32 or x_f64.

#include <stdint.h>

#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#define omp_get_num_threads() 1
#endif

// The fastest version that the machine can run is chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(PLAIN)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

#define GLUE(a, b) a##b
#define JOIN(a, b) GLUE(a, b)
#define NAME(x) JOIN(x, SUFFIX)
