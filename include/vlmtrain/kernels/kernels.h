#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::kernels {

/// Our own CUDA kernels, where ATen has none that does so much in one pass. Nothing needs them: whoever has a use for
/// one asks has(), and does the same with ATen's operations where it is not there.
enum class Kernel : uint8_t {
  kGatedActivation,  ///< gate.h
  kActivation,       ///< activation.h
  kRope,             ///< rotate.h
  kQkNormRope,       ///< norm_rotate.h
  kNorm,             ///< norm.h
  kCrossEntropy,     ///< cross_entropy.h
  kAdamW,            ///< adamw.h
  kNf4,              ///< dequantize.h
  kInt8,             ///< dequantize.h
  kPatchify,         ///< patches.h
  kDropout,          ///< dropout.h
};

std::span<const Kernel> all_kernels();
std::string_view to_string(Kernel kernel);

/// Returns the kernel of that name, or of an earlier name of it; nothing for another.
std::optional<Kernel> parse_kernel(std::string_view name);

/// Returns the same. Throws InternalError for another name.
Kernel find_kernel(std::string_view name);

using KernelSet = std::set<Kernel>;

/// What came of opening a device.
struct KernelStatus {
  std::string problem{};  ///< why there are none; empty where there are
  std::vector<std::string>
      failed{};  ///< those that differ from ATen on this card and are left out, in a few words each
};

/// Loads the library for a CUDA device that memory::open_device() gave, and compares each kernel with ATen's operations
/// on small random inputs, which takes milliseconds; one that differs is left out. On a virtual card nothing has
/// values, so nothing is compared there. `left_out`: what ATen's operations are to do. Compared once in a process; a
/// further call only says anew what is left out. The CPU has no kernels.
KernelStatus open_kernels(at::Device device, const KernelSet& disabled = {});

/// Why there are none on a CUDA device: the library is not there, or of another version. Empty where it is. Opens
/// nothing.
std::string find_library_problem();

/// What open_kernels() found wrong, and what it was told to leave out.
KernelSet disabled_kernels();

/// Whether a kernel can do it where this tensor lies, and in its type: fp32 and less. All of its kind lie there, too.
bool has(Kernel kernel, const at::Tensor& tensor);

}  // namespace vlmtrain::kernels
