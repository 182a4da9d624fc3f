// jpeglib.h requires size_t and FILE to be declared before it, and jerror.h requires jpeglib.h.
// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <array>
#include <csetjmp>
#include <utility>
#include <vector>

#include "image/codec/codecs.h"
#include "image/pixel_layout.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

namespace {

/// The state of an error handler for libjpeg that leaves by longjmp. `base` must be the first
/// member, since libjpeg passes its address.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump_buffer;
  std::array<char, JMSG_LENGTH_MAX> message;
};

/// Stores the message and jumps back to the JpegReader method that called libjpeg.
[[noreturn]] void handle_error(j_common_ptr decompressor) {
  auto* manager = reinterpret_cast<ErrorManager*>(decompressor->err);
  manager->base.format_message(decompressor, manager->message.data());
  std::longjmp(manager->jump_buffer, 1);
}

/// Returns whether libjpeg fills in missing pixels after this warning.
bool is_missing_data_warning(int code) {
  return code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_MUST_RESYNC;
}

/// Handles a message of libjpeg. Levels below 0 are warnings.
void handle_message(j_common_ptr decompressor, int level) {
  if (level < 0 && is_missing_data_warning(decompressor->err->msg_code)) handle_error(decompressor);
}

/// Raises a libjpeg error if a progressive file has too many scans. A scan of a few bytes costs a
/// pass over the whole image, so that a small file with thousands of scans would take very long.
void check_scan_count(j_common_ptr decompressor) {
  constexpr int kMaxScans = 100;  // encoders write about ten
  const int scan = reinterpret_cast<j_decompress_ptr>(decompressor)->input_scan_number;
  if (scan > kMaxScans) ERREXIT1(decompressor, JERR_BAD_SCAN_SCRIPT, scan);
}

/// A libjpeg decompressor of one file. Methods that call libjpeg have no local objects with
/// destructors, since longjmp would skip them.
class JpegReader {
 public:
  JpegReader() {
    info_.err = jpeg_std_error(&errors_.base);
    progress_.progress_monitor = check_scan_count;
    errors_.base.error_exit = handle_error;
    errors_.base.emit_message = handle_message;
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // The methods start_decoding(), read() and read_planes() return false after an error and set message().

  /// Reads the header. `bytes` must outlive the object. REQUIRES: called first.
  bool start_decoding(std::span<const std::byte> bytes) {
    if (setjmp(errors_.jump_buffer) != 0) return false;
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info_, TRUE);
    info_.out_color_space = get_color_space(info_.num_components);
    jpeg_start_decompress(&info_);
    return true;
  }

  /// Decodes all rows. REQUIRES: `pixels` has size() and channels().
  bool read(StoredPixels& pixels) {
    if (setjmp(errors_.jump_buffer) != 0) return false;
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = &pixels.samples[info_.output_scanline * pixels.row_bytes()];
      jpeg_read_scanlines(&info_, &row, 1);
    }
    return true;
  }

  /// Decodes all rows to `planes` [3, height, width]. `row` is a buffer for one row of RGB.
  /// REQUIRES: channels() is 3.
  bool read_planes(uint8_t* row, uint8_t* planes) {
    if (setjmp(errors_.jump_buffer) != 0) return false;
    const int64_t width = info_.output_width, plane_size = width * info_.output_height;
    while (info_.output_scanline < info_.output_height) {
      uint8_t* const out = planes + info_.output_scanline * width;
      JSAMPROW rows = row;
      jpeg_read_scanlines(&info_, &rows, 1);
      split_channels(row, width, {out, out + plane_size, out + 2 * plane_size});
    }
    return true;
  }

  ImageSize size() const { return {info_.output_height, info_.output_width}; }
  int64_t channels() const { return info_.output_components; }
  const char* message() const { return errors_.message.data(); }

 private:
  /// Returns the output color space for a number of components in the file.
  static J_COLOR_SPACE get_color_space(int components) {
    if (components == 1) return JCS_GRAYSCALE;
    return components == 4 ? JCS_CMYK : JCS_RGB;
  }

  jpeg_decompress_struct info_{};
  jpeg_progress_mgr progress_{};
  ErrorManager errors_{};
};

UserError make_damaged_error(const JpegReader& reader, const std::string& name) {
  return data_error("{}: a damaged or truncated JPEG ({}); replace the file or drop the sample", name,
                    reader.message());
}

/// Starts the reader. Throws UserError (kBadData) after an error or if the size differs from
/// `stored_size`.
void start_reader(JpegReader& reader, std::span<const std::byte> bytes, ImageSize stored_size,
                  const std::string& name) {
  if (!reader.start_decoding(bytes)) throw make_damaged_error(reader, name);
  if (reader.size() != stored_size) {
    throw data_error("{}: a JPEG whose headers contain two different sizes; replace the file or drop the sample", name);
  }
}

}  // namespace

bool decode_jpeg_planes(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name,
                        uint8_t* planes) {
  JpegReader reader;
  start_reader(reader, bytes, stored_size, name);
  if (reader.channels() != 3) return false;
  std::vector<uint8_t> row(static_cast<size_t>(stored_size.width) * 3);
  if (!reader.read_planes(row.data(), planes)) throw make_damaged_error(reader, name);
  return true;
}

StoredPixels decode_jpeg(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  JpegReader reader;
  start_reader(reader, bytes, stored_size, name);
  StoredPixels pixels(reader.size(), reader.channels());
  if (!reader.read(pixels)) throw make_damaged_error(reader, name);
  if (pixels.channels == 1) return convert_gray_to_rgb(pixels);
  if (pixels.channels == 4) return convert_inverted_cmyk_to_rgb(pixels);
  return pixels;
}

}  // namespace vlmtrain::image
