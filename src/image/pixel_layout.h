#pragma once

#include <cstdint>

// Marks functions whose loops the compiler vectorizes. On x86-64 the compiler emits a version with
// AVX2 and one without, and the dynamic loader selects the version for the machine.
// AddressSanitizer builds have one version only.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define VLMTRAIN_VECTORIZED __attribute__((target_clones("avx2", "default")))
#else
#define VLMTRAIN_VECTORIZED
#endif

namespace vlmtrain::image {

/// Pointers to one row of each plane of an RGB image.
struct PlaneRowPointers {
  uint8_t* red;
  uint8_t* green;
  uint8_t* blue;
};

/// Copies `num_pixels` interleaved RGB pixels to one row of each plane.
void deinterleave_channels(const uint8_t* rgb, int64_t num_pixels, const PlaneRowPointers& output);

/// Writes the transpose of `input` [rows, columns] to `output` [columns, rows]. The strides are the
/// bytes between the starts of neighboring rows. The buffers must not overlap.
void transpose_bytes(const uint8_t* input, int64_t input_stride, int64_t rows, int64_t columns, uint8_t* output,
                     int64_t output_stride);

}  // namespace vlmtrain::image
