#include "fuzz/input.h"
#include "io/checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  vlmtrain::fuzz::expect_accepted_or_rejected([&] {
    const auto header = vlmtrain::io::parse_safetensors_header(vlmtrain::fuzz::to_text(data, size), "input");
    for (const auto& [name, tensor] : header.tensors) {
      if (tensor.offset_bytes < 8 || tensor.size_bytes < 0 ||
          static_cast<uint64_t>(tensor.offset_bytes) + static_cast<uint64_t>(tensor.size_bytes) > size) {
        std::abort();
      }
    }
  });
  return 0;
}
