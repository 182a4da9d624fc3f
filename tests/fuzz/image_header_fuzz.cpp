#include "fuzz/input.h"
#include "image/codec/byte_source.h"
#include "image/codec/header.h"
#include "image/codec/orientation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    vlmtrain::image::MemoryByteSource source(std::as_bytes(std::span(data, size)));
    const auto header = vlmtrain::image::read_header(source, "input");
    if (header.stored_size.height < 1 ||
        header.stored_size.height * header.stored_size.width > vlmtrain::image::kMaxImagePixels) {
      std::abort();
    }
  });
  vlmtrain::image::parse_exif_orientation({data, size});
  vlmtrain::image::parse_xmp_orientation(vlmtrain::fuzz::to_text(data, size));
  for (const char* chunk : {"tEXt", "zTXt", "iTXt", "eXIf"}) {
    vlmtrain::image::PngMetadata metadata;
    metadata.add(chunk, {data, data + size});
    metadata.resolve_orientation();
  }
  return 0;
}
