#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace vlmtrain::io {

/// A type as safetensors files name it: "BF16", "I32". REQUIRES: one of those that they can have.
std::string_view to_safetensors_dtype(c10::ScalarType dtype);

}  // namespace vlmtrain::io
