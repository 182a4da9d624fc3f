#include "vlmtrain/base/error.h"
#include "vlmtrain/nn/weights/quantization.h"

namespace vlmtrain::nn {

const std::vector<std::pair<std::string, Quantization>>& get_quantization_names() {
  static const std::vector<std::pair<std::string, Quantization>> names{
      {"none", Quantization::kNone}, {"nf4", Quantization::kNf4}, {"int8", Quantization::kInt8}};
  return names;
}

std::string to_string(Quantization quantization) {
  for (const auto& [name, value] : get_quantization_names()) {
    if (value == quantization) return name;
  }
  throw InternalError("unknown quantization");
}

}  // namespace vlmtrain::nn
