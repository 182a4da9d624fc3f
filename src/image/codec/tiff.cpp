#include <tiffio.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "image/codec/byte_source.h"
#include "image/codec/codecs.h"
#include "image/codec/header.h"
#include "image/codec/orientation.h"
#include "image/codec/tiff_file.h"

namespace vlmtrain::image {

namespace {

/// Copies samples to bytes. Upper bytes are kept of 16-bit samples, as in Pillow; gray values of
/// fewer than 8 bits are scaled to 255.
class SampleConverter {
 public:
  SampleConverter(const TiffLayout& layout, InterleavedPixels& pixels) : layout_(layout), pixels_(pixels) {
    const int64_t max_value = (int64_t{1} << layout.bit_depth) - 1;
    if (layout.bit_depth < 8 && layout.color_model != ColorModel::kPalette) scale_ = 255 / max_value;
  }

  /// Returns the number of bytes of `num_pixels` adjacent pixels in the file.
  int64_t row_bytes(int64_t num_pixels) const {
    return (num_pixels * layout_.num_adjacent_samples() * layout_.bit_depth + 7) / 8;
  }

  /// Converts `num_pixels` pixels of `row` and writes them from pixel (y, x) on. `plane`: index of
  /// the sample in a file with separate planes, else 0.
  void convert_row(const uint8_t* row, int64_t num_pixels, int64_t y, int64_t x, int64_t plane) {
    uint8_t* const target = &pixels_.samples[y * pixels_.row_bytes() + x * pixels_.num_channels + plane];
    const int64_t num_copied = layout_.has_separate_planes ? 1 : pixels_.num_channels;
    if (layout_.bit_depth == 8 && layout_.num_adjacent_samples() == pixels_.num_channels) {
      std::copy_n(row, num_pixels * pixels_.num_channels, target);
      return;
    }
    for (int64_t i = 0; i < num_pixels; ++i) {
      for (int64_t channel = 0; channel < num_copied; ++channel) {
        target[i * pixels_.num_channels + channel] = get_sample(row, i * layout_.num_adjacent_samples() + channel);
      }
    }
  }

 private:
  uint8_t get_sample(const uint8_t* row, int64_t index) const {
    if (layout_.bit_depth == 8) return row[index];
    if (layout_.bit_depth == 16) {
      uint16_t value = 0;  // in the byte order of this machine
      std::copy_n(row + index * 2, sizeof value, reinterpret_cast<uint8_t*>(&value));
      return static_cast<uint8_t>(value >> 8);
    }
    const int64_t bit = index * layout_.bit_depth;
    const int64_t shift = 8 - layout_.bit_depth - bit % 8, mask = (int64_t{1} << layout_.bit_depth) - 1;
    return static_cast<uint8_t>((row[bit / 8] >> shift & mask) * scale_);
  }

  const TiffLayout& layout_;
  InterleavedPixels& pixels_;
  int64_t scale_ = 1;
};

void read_strips(const TiffFile& tiff, int64_t num_planes, SampleConverter& converter, ImageSize size) {
  const int64_t row_bytes = converter.row_bytes(size.width);
  if (TIFFScanlineSize64(tiff.handle()) != static_cast<uint64_t>(row_bytes)) tiff.check_read(false);
  std::vector<uint8_t> row(static_cast<size_t>(row_bytes));
  for (int64_t plane = 0; plane < num_planes; ++plane) {
    for (int64_t y = 0; y < size.height; ++y) {
      tiff.check_read(
          TIFFReadScanline(tiff.handle(), row.data(), static_cast<uint32_t>(y), static_cast<uint16_t>(plane)) == 1);
      converter.convert_row(row.data(), size.width, y, 0, plane);
    }
  }
}

void read_tiles(const TiffFile& tiff, int64_t num_planes, SampleConverter& converter, ImageSize size) {
  const int64_t tile_height = tiff.find_tag<uint32_t>(TIFFTAG_TILELENGTH).value_or(0);
  const int64_t tile_width = tiff.find_tag<uint32_t>(TIFFTAG_TILEWIDTH).value_or(0);
  // 2048 x 2048 pixels of RGBA with 16 bits. Larger tiles are read only of images that are as large,
  // within estimate_image_decoding_memory().
  constexpr int64_t kMaxTileBytes = int64_t{1} << 25, kMaxBytesPerPixel = 8;
  const int64_t max_tile_bytes = std::max(kMaxTileBytes, kMaxBytesPerPixel * size.height * size.width);
  const int64_t row_bytes = converter.row_bytes(tile_width);
  if (tile_height < 1 || row_bytes < 1 || tile_height > max_tile_bytes / row_bytes) {
    throw make_unsupported_tiff_error(tiff.name(), fmt::format("tiles of {} x {} pixels", tile_width, tile_height));
  }
  const int64_t tile_bytes = row_bytes * tile_height;
  if (TIFFTileSize64(tiff.handle()) != static_cast<uint64_t>(tile_bytes)) tiff.check_read(false);
  std::vector<uint8_t> tile(static_cast<size_t>(tile_bytes));
  for (int64_t plane = 0; plane < num_planes; ++plane) {
    for (int64_t top = 0; top < size.height; top += tile_height) {
      for (int64_t left = 0; left < size.width; left += tile_width) {
        tiff.check_read(TIFFReadTile(tiff.handle(), tile.data(), static_cast<uint32_t>(left),
                                     static_cast<uint32_t>(top), 0, static_cast<uint16_t>(plane)) == tile_bytes);
        for (int64_t y = top; y < std::min(top + tile_height, size.height); ++y) {
          converter.convert_row(&tile[static_cast<size_t>((y - top) * row_bytes)],
                                std::min(tile_width, size.width - left), y, left, plane);
        }
      }
    }
  }
}

/// The colors of a palette, with the upper bytes of its 16-bit values, as in Pillow.
class Palette {
 public:
  explicit Palette(const TiffFile& tiff) {
    tiff.check_read(TIFFGetField(tiff.handle(), TIFFTAG_COLORMAP, &values_[0], &values_[1], &values_[2]) == 1);
  }
  void write_color(uint8_t index, uint8_t* rgb) const {
    for (size_t channel = 0; channel < 3; ++channel) rgb[channel] = static_cast<uint8_t>(values_[channel][index] >> 8);
  }

 private:
  std::array<const uint16_t*, 3> values_{};  // 2^bit_depth values each, owned by libtiff
};

/// Returns the pixels with gray or palette colors as RGB, and with alpha if they have it.
InterleavedPixels expand_to_rgb(const InterleavedPixels& pixels, const Palette* palette) {
  InterleavedPixels result(pixels.size, pixels.num_channels + 2);
  const int64_t num_pixels = pixels.size.height * pixels.size.width;
  for (int64_t i = 0; i < num_pixels; ++i) {
    const uint8_t* const source = &pixels.samples[i * pixels.num_channels];
    uint8_t* const target = &result.samples[i * result.num_channels];
    if (palette == nullptr) {
      std::fill_n(target, 3, source[0]);
    } else {
      palette->write_color(source[0], target);
    }
    if (pixels.num_channels == 2) target[3] = source[1];
  }
  return result;
}

/// Inverts the first `num_inverted` channels.
void invert_channels(InterleavedPixels& pixels, int64_t num_inverted) {
  const int64_t num_samples = pixels.size.height * pixels.row_bytes();
  for (int64_t i = 0; i < num_samples; i += pixels.num_channels) {
    for (int64_t channel = 0; channel < num_inverted; ++channel) pixels.samples[i + channel] ^= 0xFF;
  }
}

InterleavedPixels convert_colors(const TiffFile& tiff, const TiffLayout& layout, InterleavedPixels pixels) {
  switch (layout.color_model) {
    case ColorModel::kCmyk:
      invert_channels(pixels, 4);
      return convert_inverted_cmyk_to_rgb(pixels);
    case ColorModel::kInvertedGray:
      invert_channels(pixels, 1);
      return expand_to_rgb(pixels, nullptr);
    case ColorModel::kGray:
      return expand_to_rgb(pixels, nullptr);
    case ColorModel::kPalette: {
      const Palette palette(tiff);
      return expand_to_rgb(pixels, &palette);
    }
    case ColorModel::kRgb:
      break;
  }
  return pixels;
}

}  // namespace

ImageHeader read_tiff_header(ByteSource& source, const std::string& name) {
  const TiffFile tiff(source, name);
  read_tiff_layout(tiff);  // reports unsupported samples
  OrientationTags orientation_tags;
  uint32_t xmp_bytes = 0;
  const char* xmp = nullptr;
  if (TIFFGetField(tiff.handle(), TIFFTAG_XMLPACKET, &xmp_bytes, &xmp) == 1 && xmp != nullptr) {
    orientation_tags.replace_xmp({xmp, xmp_bytes});
  }
  // libtiff accepts only the eight values of Orientation.
  const uint16_t orientation = tiff.get_tag(TIFFTAG_ORIENTATION, static_cast<uint16_t>(orientation_tags.orientation()));
  const bool has_one_page = TIFFLastDirectory(tiff.handle()) != 0;
  return {.format = ImageFormat::kTiff,
          .stored_size = tiff.size(),
          .orientation = static_cast<Orientation>(orientation),
          .num_pages = has_one_page ? 1 : int64_t{TIFFNumberOfDirectories(tiff.handle())}};
}

InterleavedPixels decode_tiff(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  MemoryByteSource source(bytes);
  const TiffFile tiff(source, name);
  const TiffLayout layout = read_tiff_layout(tiff);
  if (tiff.size() != stored_size) tiff.check_read(false);
  InterleavedPixels pixels(stored_size, layout.num_channels());
  SampleConverter converter(layout, pixels);
  const int64_t num_planes = layout.has_separate_planes ? layout.num_channels() : 1;
  const auto read_pixels = TIFFIsTiled(tiff.handle()) != 0 ? read_tiles : read_strips;
  read_pixels(tiff, num_planes, converter, stored_size);

  InterleavedPixels colors = convert_colors(tiff, layout, std::move(pixels));
  if (layout.alpha == AlphaKind::kNone) return colors;
  if (layout.alpha == AlphaKind::kPremultiplied) unpremultiply_alpha(colors);
  return composite_on_white(colors);
}

}  // namespace vlmtrain::image
