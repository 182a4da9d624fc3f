/// The macros of NVIDIA's headers, defined for a compiler without CUDA. The original of this file
/// is part of CUDA's compiler, so the wheel of the CUDA runtime does not ship it.
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
