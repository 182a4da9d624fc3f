#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "vlmtrain/image/size.h"

namespace vlmtrain::image {

/// A picture as it is stored: rows of interleaved samples.
struct StoredPixels {
  ImageSize size;
  int64_t channels;  ///< 1 grey, 3 RGB, 4 RGBA (PNG, WebP) or inverted CMYK (JPEG)
  std::unique_ptr<uint8_t[]> samples;

  StoredPixels(ImageSize size_in, int64_t channels_in)
      : size(size_in),
        channels(channels_in),
        samples(std::make_unique_for_overwrite<uint8_t[]>(size_in.height * size_in.width * channels_in)) {}

  int64_t row_bytes() const { return size.width * channels; }
};

/// What stands in a PNG, neither scaled nor looked up in its palette. Alpha is left out; a data error where nothing but
/// alpha has a shape.
struct PngSamples {
  StoredPixels rows;        ///< its channels are bytes a pixel: a sample of 16 bits is two, the upper one first
  int64_t channels;         ///< 1 grey or palette index, 3 RGB
  int64_t bits;             ///< of a sample in the file: 1, 2, 4, 8 or 16
  bool is_palette = false;  ///< its samples are indices
  bool has_colored_palette = false;  ///< of a palette in which entry i is not the gray value i
};

/// Each decodes a whole file of its format to RGB, `stored` being the size in its header; a data error, with `name`,
/// where any of it is missing or damaged.
StoredPixels decode_jpeg(std::span<const std::byte> bytes, ImageSize stored, const std::string& name);
/// The same to `planes` [3, height, width], row by row, so that the picture is in memory once. False, with nothing
/// written, where the file is not of three channels.
bool decode_jpeg_planes(std::span<const std::byte> bytes, ImageSize stored, const std::string& name, uint8_t* planes);
StoredPixels decode_png(std::span<const std::byte> bytes, ImageSize stored, const std::string& name);
StoredPixels decode_webp(std::span<const std::byte> bytes, ImageSize stored, const std::string& name);
PngSamples decode_png_samples(std::span<const std::byte> bytes, ImageSize stored, const std::string& name);

}  // namespace vlmtrain::image
