#pragma once

#include <cstdint>

// Declarations of LibTorch's types for headers that pass them on but need no definition. A file that reads a tensor, a
// device or an enumerator of ScalarType includes LibTorch's own header.

namespace c10 {
struct Device;
enum class ScalarType : int8_t;
template <class T>
class ArrayRef;
}  // namespace c10

namespace at {
class Tensor;
using c10::Device;
using c10::ScalarType;
using IntArrayRef = c10::ArrayRef<int64_t>;
}  // namespace at

namespace vlmtrain {

/// at::kByte and at::kFloat, for defaults in headers without LibTorch. io/checkpoint/safetensors_header.cpp checks the
/// values.
inline constexpr at::ScalarType kByteType{0}, kFloatType{6};

}  // namespace vlmtrain
