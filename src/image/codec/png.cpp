
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "image/codec/codecs.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

namespace {

/// The message of libpng's last error.
struct PngErrorMessage {
  std::array<char, 200> text{};
};

/// Stores the message and jumps back to the PngReader method that called libpng.
[[noreturn]] void handle_error(png_structp png, png_const_charp message) {
  auto* error = static_cast<PngErrorMessage*>(png_get_error_ptr(png));
  std::strncpy(error->text.data(), message, error->text.size() - 1);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp /*png*/, png_const_charp /*message*/) {}

/// Reads for libpng from the span of remaining bytes in `io_ptr`.
void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto* remaining = static_cast<std::span<const std::byte>*>(png_get_io_ptr(png));
  if (count > remaining->size()) png_error(png, "the file ends too early");
  std::memcpy(out, remaining->data(), count);
  *remaining = remaining->subspan(count);
}

/// The conversion of a PNG's samples.
enum class PngOutputFormat {
  kRgb,     ///< 8-bit RGB or RGBA
  kStored,  ///< gray, palette indices or RGB as in the file, with alpha
};

/// A libpng decompressor of one file. Methods that call libpng have no local objects with
/// destructors, since longjmp would skip them.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : remaining_bytes_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error_, handle_error, ignore_warning);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    VLMTRAIN_CHECK(info_ != nullptr,
                   "cannot create a libpng reader: its version differs from png.h, or memory is exhausted");
    png_set_read_fn(png_, &remaining_bytes_, read_bytes);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // The methods start_decoding() and read() return false after an error and set message().

  /// Reads the chunks before the pixels. The accessors are valid afterwards. REQUIRES: called once.
  bool start_decoding(PngOutputFormat output) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // read_header() checks the size
    png_read_info(png_, info_);
    bit_depth_ = png_get_bit_depth(png_, info_);
    if (output == PngOutputFormat::kRgb) {
      png_set_expand(png_);    // expands palettes, samples below 8 bits, and a transparent color
      png_set_strip_16(png_);  // keeps the upper byte, as in Pillow
      png_set_gray_to_rgb(png_);
    } else {
      png_set_packing(png_);  // samples below 8 bits become bytes, without scaling
    }
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  /// Decodes all rows. `rows`: for each row, the address of row_bytes() bytes.
  bool read(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    return true;
  }

  ImageSize size() const { return {png_get_image_height(png_, info_), png_get_image_width(png_, info_)}; }
  int64_t num_channels() const { return png_get_channels(png_, info_); }
  int64_t row_bytes() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  int get_bit_depth() const { return bit_depth_; }  ///< per sample in the file
  bool is_palette() const { return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE; }
  /// Returns whether an entry of the palette differs from the gray value of its index.
  bool has_non_identity_palette() const {
    png_colorp palette = nullptr;
    int num_entries = 0;
    if (!is_palette() || png_get_PLTE(png_, info_, &palette, &num_entries) == 0) return false;
    for (int i = 0; i < num_entries; ++i) {
      if (palette[i].red != i || palette[i].green != i || palette[i].blue != i) return true;
    }
    return false;
  }
  const char* message() const { return error_.text.data(); }

 private:
  PngErrorMessage error_;
  std::span<const std::byte> remaining_bytes_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int bit_depth_ = 0;
};

/// Decodes all pixels. `num_channels` of the result counts bytes per pixel. Throws UserError
/// (kBadData).
InterleavedPixels decode_png_pixels(PngReader& reader, PngOutputFormat output, ImageSize stored_size,
                                    const std::string& name) {
  std::optional<InterleavedPixels> pixels;
  std::vector<png_bytep> rows;
  bool succeeded = reader.start_decoding(output);
  if (succeeded) {
    if (reader.size() != stored_size) {
      throw data_error("{}: a PNG whose headers contain two different sizes; replace the file or drop the sample",
                       name);
    }
    pixels.emplace(reader.size(), reader.row_bytes() / stored_size.width);
    for (int64_t y = 0; y < stored_size.height; ++y) rows.push_back(&pixels->samples[y * pixels->row_bytes()]);
    succeeded = reader.read(rows.data());
  }
  if (!succeeded) {
    throw data_error("{}: a damaged or truncated PNG ({}); replace the file or drop the sample", name,
                     reader.message());
  }
  return *std::move(pixels);
}

/// Returns whether the bytes first_byte to first_byte + count - 1 of a pixel differ between pixels.
bool has_varying_bytes(const InterleavedPixels& pixels, int64_t first_byte, int64_t count) {
  const uint8_t* const reference = pixels.samples.get() + first_byte;
  const int64_t num_pixels = pixels.size.height * pixels.size.width;
  for (int64_t i = 1; i < num_pixels; ++i) {
    if (std::memcmp(reference + i * pixels.num_channels, reference, static_cast<size_t>(count)) != 0) return true;
  }
  return false;
}

/// Removes the last channel, alpha. Throws UserError (kBadData) if only alpha varies, since the
/// mask was probably drawn there. `num_channels`: of the file, with alpha.
InterleavedPixels remove_alpha(const InterleavedPixels& pixels, int64_t num_channels, const std::string& name) {
  const int64_t alpha_bytes = pixels.num_channels / num_channels, color_bytes = pixels.num_channels - alpha_bytes;
  if (!has_varying_bytes(pixels, 0, color_bytes) && has_varying_bytes(pixels, color_bytes, alpha_bytes)) {
    throw data_error(
        "{}: the mask has one color and a shape only in its alpha channel, which is not read; save the alpha channel "
        "as a grayscale image",
        name);
  }
  InterleavedPixels color_pixels(pixels.size, color_bytes);
  const uint8_t* source = pixels.samples.get();
  uint8_t* target = color_pixels.samples.get();
  for (int64_t i = pixels.size.height * pixels.size.width; i > 0; --i, source += pixels.num_channels) {
    target = std::copy_n(source, color_bytes, target);
  }
  return color_pixels;
}

}  // namespace

InterleavedPixels decode_png(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  PngReader reader(bytes);
  InterleavedPixels pixels = decode_png_pixels(reader, PngOutputFormat::kRgb, stored_size, name);
  return pixels.num_channels == 4 ? composite_on_white(pixels) : std::move(pixels);
}

PngSamples decode_png_samples(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  PngReader reader(bytes);
  InterleavedPixels pixels = decode_png_pixels(reader, PngOutputFormat::kStored, stored_size, name);
  int64_t num_channels = reader.num_channels();
  if (num_channels % 2 == 0) {  // gray or RGB, with alpha
    InterleavedPixels color_pixels = remove_alpha(pixels, num_channels, name);
    pixels = std::move(color_pixels);
    --num_channels;
  }
  return {.pixels = std::move(pixels),
          .num_channels = num_channels,
          .bit_depth = reader.get_bit_depth(),
          .is_palette = reader.is_palette(),
          .has_non_identity_palette = reader.has_non_identity_palette()};
}

}  // namespace vlmtrain::image
