#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/kernels/table.h"

namespace vlmtrain::kernels {

/// Returns all kernels, available or not.
std::span<const Kernel> list_kernels();
/// Returns the kernel's name, as in VLMTRAIN_WITHOUT_KERNELS: "gated_activation".
std::string_view to_string(Kernel kernel);

/// Returns the kernel with this name or former name; std::nullopt for an unknown name.
std::optional<Kernel> parse_kernel(std::string_view name);

/// Returns the kernel with this name or former name. Throws InternalError for an unknown name.
Kernel get_kernel(std::string_view name);

using KernelSet = std::set<Kernel>;

/// The result of open_kernels().
struct OpenKernelsResult {
  std::string unavailable_reason{};             ///< why no kernel is available; empty if the library is loaded
  std::vector<std::string> failure_messages{};  ///< one message per kernel that failed its self-test and is disabled
};

/// Loads the kernel library for a CUDA device from memory::open_device(), and disables the kernels
/// in `disabled` and those that fail their self-test. The self-test compares each kernel with ATen
/// on small random inputs, which takes milliseconds. It runs in the first call of a process only,
/// and not on a virtual GPU, where tensors have no values. Later calls replace `disabled`. The CPU
/// has no kernels unless VLMTRAIN_EMULATED_KERNELS names a library. Not thread-safe.
OpenKernelsResult open_kernels(at::Device device, const KernelSet& disabled = {});

/// Returns why the kernel library is not available (missing, or of another version), or an empty
/// string. Opens no device.
std::string find_kernel_library_error();

/// Returns the kernels that open_kernels() has disabled, on request or after a failed self-test.
KernelSet get_disabled_kernels();

/// Returns whether the kernel is available on the tensor's device and the tensor is not fp64.
/// Kernels of floating-point tensors support fp32, bf16 and fp16. Thread-safe.
bool is_available(Kernel kernel, const at::Tensor& tensor);

}  // namespace vlmtrain::kernels
