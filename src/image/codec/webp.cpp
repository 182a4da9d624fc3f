#include <webp/decode.h>

#include <utility>

#include "image/codec/codecs.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

namespace {

/// Returns the reason of an error, for messages.
const char* describe_webp_status(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
      return "the file ends too early";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "out of memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "a feature that libwebp does not support";
    default:
      return "invalid data";
  }
}

void check_decode_status(VP8StatusCode status, const std::string& name) {
  if (status == VP8_STATUS_OK) return;
  throw data_error("{}: a damaged or truncated WebP ({}); replace the file or drop the sample", name,
                   describe_webp_status(status));
}

}  // namespace

InterleavedPixels decode_webp(std::span<const std::byte> bytes, ImageSize stored_size, const std::string& name) {
  WebPDecoderConfig config;
  VLMTRAIN_CHECK(WebPInitDecoderConfig(&config) != 0, "the version of libwebp differs from webp/decode.h");
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  check_decode_status(WebPGetFeatures(data, bytes.size(), &config.input), name);
  if (ImageSize{config.input.height, config.input.width} != stored_size)
    check_decode_status(VP8_STATUS_BITSTREAM_ERROR, name);

  const bool has_alpha = config.input.has_alpha != 0;
  InterleavedPixels pixels(stored_size, has_alpha ? 4 : 3);
  config.output.colorspace = has_alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;  // decode to pixels.samples
  config.output.u.RGBA = {pixels.samples.get(), static_cast<int>(pixels.row_bytes()),
                          static_cast<size_t>(pixels.row_bytes() * stored_size.height)};
  check_decode_status(WebPDecode(data, bytes.size(), &config), name);
  return has_alpha ? composite_on_white(pixels) : std::move(pixels);
}

}  // namespace vlmtrain::image
