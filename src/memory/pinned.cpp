#include "vlmtrain/memory/pinned.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <exception>

#include "vlmtrain/base/log.h"
#include "vlmtrain/memory/recovery.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::memory {

namespace {

void warn_once(const std::string& reason) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  spdlog::warn("no pinned memory of the host is left ({}): copies to and from the device hold up the run", reason);
}

/// What `pinned` makes; what `make_pageable` makes where there is no pinned memory, even after LibTorch gave back what
/// it keeps.
template <class MakePinned, class MakePageable>
at::Tensor try_pinned(const MakePinned& make_pinned, const MakePageable& make_pageable) {
  for (const bool is_first : {true, false}) {
    try {
      return make_pinned();
    } catch (const std::exception& error) {
      const auto out_of_memory = detect_out_of_memory(error);
      if (!out_of_memory) throw;
      if (is_first) {
        release_pinned(at::kCUDA);
      } else {
        warn_once(out_of_memory->reason);
      }
    }
  }
  return make_pageable();
}

}  // namespace

at::Tensor try_pin_memory(const at::Tensor& tensor) {
  return try_pinned([&] { return tensor.pin_memory(); }, [&] { return tensor; });
}

at::Tensor empty_pinned(at::IntArrayRef sizes) {
  const at::TensorOptions fp32(at::kFloat);
  return try_pinned([&] { return at::empty(sizes, fp32.pinned_memory(true)); }, [&] { return at::empty(sizes, fp32); });
}

}  // namespace vlmtrain::memory
