#pragma once

#include <cstdint>

// Declarations of LibTorch's types for headers that only name them. A file that reads a tensor or a
// device, or names an enumerator of ScalarType, includes LibTorch's own header.

namespace c10 {
struct Device;
enum class ScalarType : int8_t;
}  // namespace c10

namespace at {
class Tensor;
using c10::Device;
using c10::ScalarType;
}  // namespace at

namespace vlmtrain {

/// at::kByte, at::kHalf, at::kFloat and at::kBFloat16, for sources without LibTorch.
/// src/io/checkpoint/safetensors_header.cpp checks the values.
inline constexpr at::ScalarType kByteType{0}, kHalfType{5}, kFloatType{6}, kBFloat16Type{15};

}  // namespace vlmtrain
