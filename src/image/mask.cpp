#include "vlmtrain/image/mask.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "image/codec/byte_source.h"
#include "image/codec/codecs.h"
#include "image/codec/header.h"
#include "image/codec/orientation.h"
#include "image/mask_values.h"
#include "image/pixel_layout.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::image {

namespace {

/// Throws UserError (kBadData) unless the file is a PNG.
void check_is_png(const ImageHeader& header, const std::string& name) {
  if (header.format == ImageFormat::kJpeg) {
    throw data_error("{}: a JPEG mask has blurred edges; save the mask as PNG, grayscale or with a palette", name);
  }
  if (header.format != ImageFormat::kPng) {
    throw data_error("{}: {} masks are not supported; convert the mask to PNG, grayscale or with a palette", name,
                     header.format == ImageFormat::kWebp   ? "WebP"
                     : header.format == ImageFormat::kTiff ? "TIFF"
                                                           : "HEIC and AVIF");
  }
}

/// Throws UserError (kBadData) if no pixel of the file can have `value`. `bit_depth`: per gray
/// sample or palette index.
void check_mask_value(int64_t value, bool is_rgb, int64_t bit_depth, const std::string& name) {
  if (is_rgb) {
    throw data_error(
        "{}: the record sets mask value {}, but the PNG is RGB; save it as grayscale or with a palette, or omit the "
        "value",
        name, value);
  }
  const int64_t max_value = (int64_t{1} << bit_depth) - 1;
  if (value < 0 || value > max_value) {
    throw data_error(
        "{}: no pixel can have the mask value {}: the PNG has {} bits per pixel, values from 0 to {}; give one of "
        "these, or omit the value",
        name, value, bit_depth, max_value);
  }
}

/// Returns one byte for each pixel: 1 if `is_set` returns true for the pixel's bytes, else 0.
template <class IsSet>
InterleavedPixels make_mask_where(const InterleavedPixels& pixels, const IsSet& is_set) {
  InterleavedPixels mask(pixels.size, 1);
  const int64_t num_pixels = pixels.size.height * pixels.size.width;
  const uint8_t* pixel = pixels.samples.get();
  for (int64_t i = 0; i < num_pixels; ++i, pixel += pixels.num_channels) mask.samples[i] = is_set(pixel) ? 1 : 0;
  return mask;
}

/// Returns a mask of one channel. Sets the pixels of `value` if given, else the pixels with gray
/// values above `threshold` if it is positive, else all nonzero pixels. `bit_depth`: per sample in
/// the file; 16-bit samples are big-endian.
InterleavedPixels make_mask(const InterleavedPixels& pixels, std::optional<int64_t> value, int64_t threshold,
                            int64_t bit_depth) {
  const int64_t bytes_per_pixel = pixels.num_channels;
  if (!value && threshold > 0) {
    const bool is_16_bit = bit_depth == 16;
    return make_mask_where(pixels, [=](const uint8_t* pixel) {
      return (is_16_bit ? pixel[0] << 8 | pixel[1] : int{pixel[0]}) > threshold;
    });
  }
  if (!value) {
    return make_mask_where(pixels, [bytes_per_pixel](const uint8_t* pixel) {
      uint8_t combined_bits = 0;
      for (int64_t i = 0; i < bytes_per_pixel; ++i) combined_bits |= pixel[i];
      return combined_bits != 0;
    });
  }
  const int64_t requested_value = *value;
  if (bytes_per_pixel == 1)
    return make_mask_where(pixels, [requested_value](const uint8_t* pixel) { return pixel[0] == requested_value; });
  return make_mask_where(
      pixels, [requested_value](const uint8_t* pixel) { return (pixel[0] << 8 | pixel[1]) == requested_value; });
}

DecodedMask decode_mask_bytes(std::span<const std::byte> bytes, std::optional<int64_t> value, const std::string& name) {
  MemoryByteSource source(bytes);
  const ImageHeader header = read_header(source, name);
  check_is_png(header, name);
  const PngSamples samples = decode_png_samples(bytes, header.stored_size, name);
  if (value) check_mask_value(*value, samples.num_channels != 1, samples.bit_depth, name);
  const auto [height, width] = compute_upright_size(header);
  at::Tensor result = at::empty({height, width}, at::kByte);
  MaskRule rule = value ? MaskRule{} : find_mask_rule(samples, name);
  write_upright_gray_plane(make_mask(samples.pixels, value, rule.threshold, samples.bit_depth), header.orientation,
                           result.mutable_data_ptr<uint8_t>());
  return {.mask = std::move(result), .notice = std::move(rule.notice)};
}

/// Reads the size from the header and validates `value` with the bit depth and color type of IHDR,
/// the first chunk of a PNG (https://www.w3.org/TR/png-3/#11IHDR).
ImageSize read_size_and_check_value(ByteSource& source, std::optional<int64_t> value, const std::string& name) {
  constexpr uint64_t kBitDepthOffset = 24;  // in the file; the next byte is the color type
  constexpr uint8_t kColorUsedBit = 2, kPaletteColorType = 3;
  const ImageHeader header = read_header(source, name);
  check_is_png(header, name);
  std::array<uint8_t, 2> bit_depth_and_color_type{};
  if (value && source.read(kBitDepthOffset, bit_depth_and_color_type)) {
    const auto [depth, type] = bit_depth_and_color_type;
    check_mask_value(*value, type != kPaletteColorType && (type & kColorUsedBit) != 0, depth, name);
  }
  return compute_upright_size(header);
}

}  // namespace

ImageSize read_mask_size(const io::MediaRef& file, std::optional<int64_t> value) {
  if (file.bytes) {
    MemoryByteSource source(std::as_bytes(std::span(io::get_media_bytes(file))));
    return read_size_and_check_value(source, value, file.path);
  }
  FileByteSource source(file.path);
  return read_size_and_check_value(source, value, file.path);
}

at::Tensor decode_mask(const io::MediaRef& file, std::optional<int64_t> value) {
  return decode_mask_with_notice(file, value).mask;
}

DecodedMask decode_mask_with_notice(const io::MediaRef& file, std::optional<int64_t> value) {
  if (!file.bytes) return decode_mask_bytes(read_file_bytes(file.path), value, file.path);
  return decode_mask_bytes(std::as_bytes(std::span(io::get_media_bytes(file))), value, file.path);
}

static_assert(io::kMaxMaskPixels == kMaxImagePixels);

at::Tensor decode_rle(const Rle& rle) {
  const int64_t num_pixels = rle.height * rle.width;
  std::vector<uint8_t> column_major_pixels(static_cast<size_t>(num_pixels));
  int64_t offset = 0;
  uint8_t value = 0;
  for (const int64_t count : rle.counts) {
    VLMTRAIN_CHECK(count >= 0 && count <= num_pixels - offset, "runs exceed the mask's {} pixels", num_pixels);
    std::fill_n(column_major_pixels.begin() + offset, count, value);
    offset += count;
    value ^= 1;
  }
  VLMTRAIN_CHECK(offset == num_pixels, "the runs have {} pixels, but the mask has {}", offset, num_pixels);
  at::Tensor mask = at::empty({rle.height, rle.width}, at::kByte);
  transpose_bytes(column_major_pixels.data(), rle.height, rle.width, rle.height, mask.mutable_data_ptr<uint8_t>(),
                  rle.width);
  return mask;
}

Rle encode_rle(const at::Tensor& mask) {
  check_is_mask(mask);
  const at::Tensor rows = mask.contiguous();
  Rle rle{.height = mask.size(0), .width = mask.size(1), .counts = {}};
  std::vector<uint8_t> column_major_pixels(static_cast<size_t>(mask.numel()));
  transpose_bytes(rows.const_data_ptr<uint8_t>(), rle.width, rle.height, rle.width, column_major_pixels.data(),
                  rle.height);
  bool value = false;
  for (auto run_begin = column_major_pixels.cbegin(); run_begin != column_major_pixels.cend(); value = !value) {
    const auto run_end =
        std::find_if(run_begin, column_major_pixels.cend(), [value](uint8_t pixel) { return (pixel != 0) != value; });
    rle.counts.push_back(run_end - run_begin);
    run_begin = run_end;
  }
  return rle;
}

void check_is_mask(const at::Tensor& mask) {
  VLMTRAIN_CHECK(mask.dim() == 2 && mask.scalar_type() == at::kByte && mask.is_cpu() && mask.numel() > 0,
                 "a mask must be uint8 [height, width] on the CPU");
}

at::Tensor extract_mask_edge(const at::Tensor& mask) {
  check_is_mask(mask);
  const at::Tensor source = mask.contiguous();
  const int64_t height = source.size(0), width = source.size(1);
  const auto* const pixels = source.const_data_ptr<uint8_t>();
  const std::vector<uint8_t> zero_row(static_cast<size_t>(width), 0);
  at::Tensor result = at::empty({height, width}, at::kByte);
  auto* out = result.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y, out += width) {
    const uint8_t* row = pixels + y * width;
    const uint8_t* previous_row = y > 0 ? row - width : zero_row.data();
    const uint8_t* next_row = y + 1 < height ? row + width : zero_row.data();
    for (int64_t x = 1; x + 1 < width; ++x) {
      // Without branches, so that the compiler vectorizes the loop.
      const int has_outside_neighbor =
          (row[x - 1] == 0) | (row[x + 1] == 0) | (previous_row[x] == 0) | (next_row[x] == 0);
      out[x] = static_cast<uint8_t>((row[x] != 0) & has_outside_neighbor);
    }
    // The first and last columns border the outside, so that each of their set pixels is an edge.
    for (const int64_t x : {int64_t{0}, width - 1}) out[x] = row[x] != 0 ? 1 : 0;
  }
  return result;
}

}  // namespace vlmtrain::image
