#include "vlmtrain/memory/pinned.h"

#include <ATen/ops/empty.h>

#include <atomic>
#include <exception>

#include "vlmtrain/base/log.h"
#include "vlmtrain/memory/recovery.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::memory {

namespace {

void say_once(const std::string& reason) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  spdlog::warn("no pinned memory of the host is left ({}): copies to and from the device hold up the run", reason);
}

/// What `pinned` makes; what `plain` makes where there is no pinned memory, even after LibTorch gave back what it
/// keeps.
template <class Pinned, class Plain>
at::Tensor pinned_if_possible(const Pinned& pinned, const Plain& plain) {
  for (const bool is_first : {true, false}) {
    try {
      return pinned();
    } catch (const std::exception& error) {
      const auto shortage = shortage_in(error);
      if (!shortage) throw;
      if (is_first) {
        release_pinned(at::kCUDA);
      } else {
        say_once(shortage->reason);
      }
    }
  }
  return plain();
}

}  // namespace

at::Tensor pinned_copy(const at::Tensor& tensor) {
  return pinned_if_possible([&] { return tensor.pin_memory(); }, [&] { return tensor; });
}

at::Tensor pinned_room(at::IntArrayRef sizes) {
  const at::TensorOptions fp32(at::kFloat);
  return pinned_if_possible([&] { return at::empty(sizes, fp32.pinned_memory(true)); },
                            [&] { return at::empty(sizes, fp32); });
}

}  // namespace vlmtrain::memory
