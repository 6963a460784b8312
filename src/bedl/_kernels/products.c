/* Tiles for each generation of processors, and the choice between them. */
#include "products.h"

#define JOINED_(a, b) a##b
#define JOINED(a, b) JOINED_(a, b)
#if defined(__x86_64__) && defined(__linux__) && !defined(PORTABLE)
#define BY_PROCESSOR
#define NAMED(x) JOINED(x, _v4)
#define TARGET __attribute__((target("avx512f,fma,avx2")))
#define LANES 16
#define HALF 8
#define VECTORS 4
#include "tile.h"
#undef NAMED
#undef TARGET
#undef LANES
#undef HALF
#undef VECTORS
#define NAMED(x) JOINED(x, _v3)
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define HALF 4
#define VECTORS 2
#include "tile.h"
#undef NAMED
#undef TARGET
#undef LANES
#undef HALF
#undef VECTORS
#endif
#define NAMED(x) JOINED(x, _v1)
#define TARGET
#define LANES 4
#define HALF 4
#ifdef __aarch64__
#define VECTORS 4
#else
#define VECTORS 2
#endif
#include "tile.h"

Way bedl_way(void) {
#ifdef BY_PROCESSOR
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return (Way){tile_v4, 64, 8};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (Way){tile_v3, 16, 4};
#endif
    return (Way){tile_v1, LANES * VECTORS, HALF};
}
