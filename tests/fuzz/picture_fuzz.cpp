#include "fuzz/input.h"
#include "image/byte_source.h"
#include "image/header.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/image/mask.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  vlmtrain::fuzz::expect_taken_or_refused([&] {
    vlmtrain::image::MemorySource source(bytes);
    const auto told = vlmtrain::image::upright_size(vlmtrain::image::read_header(source, "input"));
    constexpr int64_t kQuick = 1 << 20;
    if (told.height * told.width > kQuick) return;
    const at::Tensor picture = vlmtrain::image::decode_image(bytes, "input");
    if (picture.size(1) != told.height || picture.size(2) != told.width) std::abort();
    vlmtrain::io::Medium medium("input");
    medium.bytes = std::make_shared<const std::string>(vlmtrain::fuzz::text_of(data, size));
    const at::Tensor mask = vlmtrain::image::decode_mask(medium, std::nullopt);
    if (mask.size(0) != told.height || mask.size(1) != told.width) std::abort();
  });
  return 0;
}
