#include "fuzz/input.h"
#include "image/codec/byte_source.h"
#include "image/codec/header.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/mask.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    vlmtrain::image::MemoryByteSource source(bytes);
    const vlmtrain::image::ImageHeader header = vlmtrain::image::read_header(source, "input");
    // libheif is not instrumented, and that of Debian 12 leaks memory on damaged AVIF.
    if (header.format == vlmtrain::image::ImageFormat::kHeif) return;
    const auto header_size = vlmtrain::image::compute_upright_size(header);
    constexpr int64_t kMaxPixels = 1 << 20;
    if (header_size.height * header_size.width > kMaxPixels) return;
    const at::Tensor image = vlmtrain::image::decode_image(bytes, "input");
    if (image.size(1) != header_size.height || image.size(2) != header_size.width) std::abort();
    vlmtrain::io::MediaRef medium("input");
    medium.bytes = std::make_shared<const std::string>(vlmtrain::fuzz::to_text(data, size));
    const at::Tensor mask = vlmtrain::image::decode_mask(medium, std::nullopt);
    if (mask.size(0) != header_size.height || mask.size(1) != header_size.width) std::abort();
  });
  return 0;
}
