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
struct JpegErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump_buffer;
  std::array<char, JMSG_LENGTH_MAX> message;
};

/// Stores the message and jumps back to the JpegReader method that called libjpeg.
[[noreturn]] void handle_error(j_common_ptr decompressor) {
  auto* error_manager = reinterpret_cast<JpegErrorManager*>(decompressor->err);
  error_manager->base.format_message(decompressor, error_manager->message.data());
  std::longjmp(error_manager->jump_buffer, 1);
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
void check_num_scans(j_common_ptr decompressor) {
  constexpr int kMaxScans = 100;  // encoders write about ten
  const int scan_number = reinterpret_cast<j_decompress_ptr>(decompressor)->input_scan_number;
  if (scan_number > kMaxScans) ERREXIT1(decompressor, JERR_BAD_SCAN_SCRIPT, scan_number);
}

/// A libjpeg decompressor of one file. Methods that call libjpeg have no local objects with
/// destructors, since longjmp would skip them.
class JpegReader {
 public:
  JpegReader() {
    decompressor_.err = jpeg_std_error(&error_manager_.base);
    progress_manager_.progress_monitor = check_num_scans;
    error_manager_.base.error_exit = handle_error;
    error_manager_.base.emit_message = handle_message;
  }
  ~JpegReader() { jpeg_destroy_decompress(&decompressor_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // The methods start_decoding(), read() and read_planes() return false after an error and set
  // message().

  /// Reads the header. `bytes` must outlive the object. REQUIRES: called first.
  bool start_decoding(std::span<const std::byte> bytes) {
    if (setjmp(error_manager_.jump_buffer) != 0) return false;
    jpeg_create_decompress(&decompressor_);
    decompressor_.progress = &progress_manager_;
    jpeg_mem_src(&decompressor_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&decompressor_, TRUE);
    decompressor_.out_color_space = select_output_color_space(decompressor_.num_components);
    jpeg_start_decompress(&decompressor_);
    return true;
  }

  /// Decodes all rows. REQUIRES: `pixels` has size() and num_channels().
  bool read(InterleavedPixels& pixels) {
    if (setjmp(error_manager_.jump_buffer) != 0) return false;
    while (decompressor_.output_scanline < decompressor_.output_height) {
      JSAMPROW row = &pixels.samples[decompressor_.output_scanline * pixels.row_bytes()];
      jpeg_read_scanlines(&decompressor_, &row, 1);
    }
    return true;
  }

  /// Decodes all rows to `planes` [3, height, width]. `row` is a buffer for one row of RGB.
  /// REQUIRES: num_channels() is 3.
  bool read_planes(uint8_t* row, uint8_t* planes) {
    if (setjmp(error_manager_.jump_buffer) != 0) return false;
    const int64_t width = decompressor_.output_width, plane_size = width * decompressor_.output_height;
    while (decompressor_.output_scanline < decompressor_.output_height) {
      uint8_t* const out = planes + decompressor_.output_scanline * width;
      JSAMPROW rows = row;
      jpeg_read_scanlines(&decompressor_, &rows, 1);
      deinterleave_channels(row, width, {out, out + plane_size, out + 2 * plane_size});
    }
    return true;
  }

  ImageSize size() const { return {decompressor_.output_height, decompressor_.output_width}; }
  int64_t num_channels() const { return decompressor_.output_components; }
  const char* message() const { return error_manager_.message.data(); }

 private:
  /// Returns the output color space for a number of components in the file.
  static J_COLOR_SPACE select_output_color_space(int components) {
    if (components == 1) return JCS_GRAYSCALE;
    return components == 4 ? JCS_CMYK : JCS_RGB;
  }

  jpeg_decompress_struct decompressor_{};
  jpeg_progress_mgr progress_manager_{};
  JpegErrorManager error_manager_{};
};

UserError make_damaged_jpeg_error(const JpegReader& reader, const std::string& name) {
  return data_error("{}: a damaged or truncated JPEG ({}); replace the file or drop the sample", name,
                    reader.message());
}

/// Starts the reader. Throws UserError (kBadData) after an error or if the size differs from
/// `stored_size`.
void start_jpeg_reader(JpegReader& reader, std::span<const std::byte> bytes, ImageSize stored_size,
                       const std::string& name) {
  if (!reader.start_decoding(bytes)) throw make_damaged_jpeg_error(reader, name);
  if (reader.size() != stored_size) {
    throw data_error("{}: a JPEG whose headers contain two different sizes; replace the file or drop the sample", name);
  }
}

}  // namespace

bool decode_jpeg_planes(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name,
                        uint8_t* planes) {
  JpegReader reader;
  start_jpeg_reader(reader, bytes, stored_size, name);
  if (reader.num_channels() != 3) return false;
  std::vector<uint8_t> row_buffer(static_cast<size_t>(stored_size.width) * 3);
  if (!reader.read_planes(row_buffer.data(), planes)) throw make_damaged_jpeg_error(reader, name);
  return true;
}

InterleavedPixels decode_jpeg(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  JpegReader reader;
  start_jpeg_reader(reader, bytes, stored_size, name);
  InterleavedPixels pixels(reader.size(), reader.num_channels());
  if (!reader.read(pixels)) throw make_damaged_jpeg_error(reader, name);
  if (pixels.num_channels == 1) return convert_gray_to_rgb(pixels);
  if (pixels.num_channels == 4) return convert_inverted_cmyk_to_rgb(pixels);
  return pixels;
}

}  // namespace vlmtrain::image
