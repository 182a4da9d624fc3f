/// The words that NVIDIA's headers mark declarations with, for a plain C++ compiler. The runtime's
/// wheel ships its headers without this one, which is part of the compiler's.
#pragma once

#define __host__
#define __device__
#define __global__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
