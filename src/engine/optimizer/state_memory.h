#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/memory/host_arena.h"

namespace vlmtrain::engine {

/// The memory of masters and moments: on the device of the weights, or in host memory that a CUDA
/// device reads and writes over the link during the update, without copies or buffers. Not
/// thread-safe.
class StateMemory {
 public:
  /// On the CPU, memory of both kinds is the same.
  StateMemory(const at::TensorOptions& options, bool is_on_host)
      : options_(options), is_on_host_(is_on_host), arena_(options.device()) {}

  /// Returns zeros as a tensor on the device. Throws the exceptions of memory::HostArena::allocate().
  at::Tensor make_zeros(at::IntArrayRef sizes, at::ScalarType dtype) {
    if (!is_on_host_) return make_resident_zeros(sizes, dtype);
    return arena_.view_on_device(arena_.allocate(sizes, dtype, keys::memory::kOffload.data()));
  }
  /// Returns zeros that always are in the device's own memory.
  at::Tensor make_resident_zeros(at::IntArrayRef sizes, at::ScalarType dtype) const {
    return at::zeros(sizes, options_.dtype(dtype));
  }
  /// Returns the bytes of host memory, all of which an update reads and writes once.
  int64_t host_bytes() const { return is_on_host_ ? arena_.bytes() : 0; }

 private:
  at::TensorOptions options_;
  bool is_on_host_;
  memory::HostArena arena_;
};

}  // namespace vlmtrain::engine
