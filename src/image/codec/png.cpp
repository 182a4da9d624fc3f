#include "image/codec/png.h"

#include <png.h>
#include <zlib.h>

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

struct ErrorBuffer {
  std::array<char, 200> text{};
};

[[noreturn]] void handle_error(png_structp png, png_const_charp message) {
  auto* error = static_cast<ErrorBuffer*>(png_get_error_ptr(png));
  std::strncpy(error->text.data(), message, error->text.size() - 1);
  png_longjmp(png, 1);
}

void ignore_warning(png_structp /*png*/, png_const_charp /*message*/) {}

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto* remaining = static_cast<std::span<const std::byte>*>(png_get_io_ptr(png));
  if (count > remaining->size()) png_error(png, "the file ends too early");
  std::memcpy(out, remaining->data(), count);
  *remaining = remaining->subspan(count);
}

/// The conversion of a PNG's samples.
enum class PngOutput {
  kColor,   ///< 8-bit RGB or RGBA
  kStored,  ///< gray, palette indices or RGB as in the file, with alpha
};

/// A decompressor. longjmp must not skip destructors, so that this object and the caller own all
/// memory.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : remaining_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, &error_, handle_error, ignore_warning);
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
    VLMTRAIN_CHECK(info_ != nullptr, "libpng of another version, or out of memory");
    png_set_read_fn(png_, &remaining_, read_bytes);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  // The following return false after an error and set message().
  bool start(PngOutput output) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // read_header() checks the size
    png_read_info(png_, info_);
    bit_depth_ = png_get_bit_depth(png_, info_);
    if (output == PngOutput::kColor) {
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

  bool read(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_read_image(png_, rows);
    return true;
  }

  ImageSize size() const { return {png_get_image_height(png_, info_), png_get_image_width(png_, info_)}; }
  int64_t channels() const { return png_get_channels(png_, info_); }
  int64_t row_bytes() const { return static_cast<int64_t>(png_get_rowbytes(png_, info_)); }
  int get_bit_depth() const { return bit_depth_; }  ///< per sample in the file
  bool is_palette() const { return png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE; }
  /// Returns whether an entry of the palette differs from the gray value of its index.
  bool has_colored_palette() const {
    png_colorp palette = nullptr;
    int entries = 0;
    if (!is_palette() || png_get_PLTE(png_, info_, &palette, &entries) == 0) return false;
    for (int i = 0; i < entries; ++i) {
      if (palette[i].red != i || palette[i].green != i || palette[i].blue != i) return true;
    }
    return false;
  }
  const char* message() const { return error_.text.data(); }

 private:
  ErrorBuffer error_;
  std::span<const std::byte> remaining_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int bit_depth_ = 0;
};

/// Decoded rows, in which `channels` counts bytes per pixel.
StoredPixels decode_pixels(PngReader& reader, PngOutput output, ImageSize stored, const std::string& name) {
  std::optional<StoredPixels> pixels;
  std::vector<png_bytep> rows;
  bool succeeded = reader.start(output);
  if (succeeded) {
    if (reader.size() != stored) {
      throw data_error("{}: a PNG that tells two sizes; replace the file or drop the sample", name);
    }
    pixels.emplace(reader.size(), reader.row_bytes() / stored.width);
    for (int64_t y = 0; y < stored.height; ++y) rows.push_back(&pixels->samples[y * pixels->row_bytes()]);
    succeeded = reader.read(rows.data());
  }
  if (!succeeded) {
    throw data_error("{}: a damaged or cut-off PNG ({}); replace the file or drop the sample", name, reader.message());
  }
  return *std::move(pixels);
}

/// Returns whether the bytes first_byte to first_byte + count - 1 differ between pixels.
bool has_variation(const StoredPixels& pixels, int64_t first_byte, int64_t count) {
  const uint8_t* const reference = pixels.samples.get() + first_byte;
  const int64_t num_pixels = pixels.size.height * pixels.size.width;
  for (int64_t i = 1; i < num_pixels; ++i) {
    if (std::memcmp(reference + i * pixels.channels, reference, static_cast<size_t>(count)) != 0) return true;
  }
  return false;
}

/// Removes the last channel, alpha. Throws UserError (kBadData) if only alpha has content, since
/// the mask was probably drawn there.
StoredPixels remove_alpha(const StoredPixels& pixels, int64_t channels, const std::string& name) {
  const int64_t alpha_bytes = pixels.channels / channels, color_bytes = pixels.channels - alpha_bytes;
  if (!has_variation(pixels, 0, color_bytes) && has_variation(pixels, color_bytes, alpha_bytes)) {
    throw data_error(
        "{}: a mask of one colour all over, with a shape in its transparency, which is not looked at; save the alpha "
        "channel by itself, as grey",
        name);
  }
  StoredPixels colors(pixels.size, color_bytes);
  const uint8_t* source = pixels.samples.get();
  uint8_t* target = colors.samples.get();
  for (int64_t i = pixels.size.height * pixels.size.width; i > 0; --i, source += pixels.channels) {
    target = std::copy_n(source, color_bytes, target);
  }
  return colors;
}

constexpr std::string_view kXmpKey = "XML:com.adobe.xmp";
constexpr std::string_view kRawProfileKey = "Raw profile type exif";
/// Pillow's MAX_TEXT_CHUNK: texts that inflate beyond it are ignored.
constexpr size_t kMaxTextBytes = 1 << 20;

/// Removes and returns the text before the first zero byte, with that byte.
std::optional<std::string_view> take_field(std::string_view& data) {
  const size_t end = data.find('\0');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view field = data.substr(0, end);
  data.remove_prefix(end + 1);
  return field;
}

std::optional<std::string> inflate_text(std::string_view compressed_bytes) {
  std::string text(kMaxTextBytes, '\0');
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return std::nullopt;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed_bytes.data()));
  stream.avail_in = static_cast<uInt>(compressed_bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  const int status = inflate(&stream, Z_FINISH);
  text.resize(stream.total_out);
  inflateEnd(&stream);
  return status == Z_STREAM_END ? std::optional(std::move(text)) : std::nullopt;
}

/// Returns the text of a chunk, which follows its keyword.
std::optional<std::string> read_text(std::string_view chunk, std::string_view remaining) {
  if (chunk == "tEXt") return std::string(remaining);
  if (chunk == "zTXt") {
    if (remaining.empty() || remaining.front() != 0) return std::nullopt;
    return inflate_text(remaining.substr(1));
  }
  if (remaining.size() < 2 || (remaining[0] != 0 && remaining[1] != 0)) return std::nullopt;
  const bool is_compressed = remaining[0] != 0;
  remaining.remove_prefix(2);
  if (!take_field(remaining) || !take_field(remaining)) return std::nullopt;  // language, translated keyword
  return is_compressed ? inflate_text(remaining) : std::optional<std::string>(remaining);
}

int hex_digit(char character) {
  if (character >= '0' && character <= '9') return character - '0';
  if (character >= 'a' && character <= 'f') return character - 'a' + 10;
  return character >= 'A' && character <= 'F' ? character - 'A' + 10 : -1;
}

/// Decodes ImageMagick's raw profile: an empty line, the name, the length, then hexadecimal bytes.
std::vector<uint8_t> decode_raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::vector<uint8_t> bytes;
  int high_digit = -1;
  for (const char character : text) {
    const int digit = hex_digit(character);
    if (digit < 0) continue;
    if (high_digit < 0) {
      high_digit = digit;
    } else {
      bytes.push_back(static_cast<uint8_t>(high_digit << 4 | digit));
      high_digit = -1;
    }
  }
  return bytes;
}

}  // namespace

StoredPixels decode_png(std::span<const std::byte> bytes, ImageSize stored, const std::string& name) {
  PngReader reader(bytes);
  StoredPixels pixels = decode_pixels(reader, PngOutput::kColor, stored, name);
  return pixels.channels == 4 ? rgba_on_white(pixels) : std::move(pixels);
}

PngSamples decode_png_samples(std::span<const std::byte> bytes, ImageSize stored, const std::string& name) {
  PngReader reader(bytes);
  StoredPixels pixels = decode_pixels(reader, PngOutput::kStored, stored, name);
  int64_t channels = reader.channels();
  if (channels % 2 == 0) {
    StoredPixels colors = remove_alpha(pixels, channels, name);
    pixels = std::move(colors);
    --channels;
  }
  return {.rows = std::move(pixels),
          .channels = channels,
          .bits = reader.get_bit_depth(),
          .is_palette = reader.is_palette(),
          .has_colored_palette = reader.has_colored_palette()};
}

void PngMetadata::add(std::string_view chunk, const std::vector<uint8_t>& data) {
  if (chunk == "eXIf") {
    tags_.replace_exif(data);
    has_exif_ = true;
    return;
  }
  std::string_view remaining(reinterpret_cast<const char*>(data.data()), data.size());
  const std::optional<std::string_view> key = take_field(remaining);
  if (key != kXmpKey && key != kRawProfileKey) return;
  constexpr int kMaxTexts = 64;  // Pillow's limit of memory for texts, MAX_TEXT_MEMORY / MAX_TEXT_CHUNK
  if (++num_texts_ > kMaxTexts) return;
  if (auto text = read_text(chunk, remaining)) add_text(*key, *std::move(text));
}

void PngMetadata::add_text(std::string_view key, std::string text) {
  if (key == kXmpKey) {
    tags_.add_xmp(text);
  } else {
    raw_profile_ = std::move(text);
  }
}

Orientation PngMetadata::orientation() {
  if (!has_exif_ && !raw_profile_.empty()) tags_.replace_exif(decode_raw_profile(raw_profile_));
  return tags_.orientation();
}

}  // namespace vlmtrain::image
