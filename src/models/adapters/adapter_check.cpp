#include "models/adapters/adapter_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "models/adapters/adapter_layout.h"
#include "models/adapters/output_module.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/overflow.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/dtype_name.h"

namespace vlmtrain::models {

namespace {

/// What is wrong with a tensor that no parameter of the adapter is called like.
std::string describe_unexpected_tensor(const std::string& name, const VisionLanguageModel& model,
                                       const AdapterTensors& tensors) {
  const std::string& file_name = tensors.stored_name(name);
  const nn::Parameter* const embedding = find_tied_embedding(model);
  if (embedding != nullptr && embedding->in_modules_to_save && name == find_output_module(model) + ".weight") {
    if (!tensors.contains(embedding->name) || at::equal(tensors.tensor(embedding->name), tensors.tensor(name))) {
      return "";
    }
    return fmt::format(
        "{} differs from {}, and the two are tied (ensure_weight_tying); set that to false where they "
        "were trained apart",
        file_name, tensors.stored_name(embedding->name));
  }
  if (name.find(".base_layer.") != std::string::npos || name.find(".original_module.") != std::string::npos) {
    return fmt::format(
        "unexpected: {} (a weight of the base; merge the adapter with the program that wrote it, or "
        "save the adapter without the base's weights)",
        file_name);
  }
  return "unexpected: " + file_name;
}

}  // namespace

std::vector<nn::Parameter> adapter_parameters(const VisionLanguageModel& model) {
  std::vector<nn::Parameter> result;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.is_saved_with_adapter()) result.push_back(parameter);
  }
  return result;
}

void check_adapter_fits(const VisionLanguageModel& model, const AdapterTensors& tensors) {
  std::vector<std::string> problems;
  std::unordered_set<std::string> expected;
  for (const auto& parameter : adapter_parameters(model)) {
    expected.insert(parameter.name);
    if (!tensors.contains(parameter.name)) {
      problems.push_back(fmt::format("missing: {}{}", kAdapterPrefix, parameter.name));
      continue;
    }
    const auto& info = tensors.info(parameter.name);
    for (auto problem :
         {describe_dtype_mismatch(parameter.name, info.dtype), describe_shape_mismatch(parameter, info.shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  for (const auto& name : tensors.names()) {
    if (expected.contains(name)) continue;
    if (auto problem = describe_unexpected_tensor(name, model, tensors); !problem.empty())
      problems.push_back(std::move(problem));
  }
  refuse_differences(fmt::format("{}: the adapter does not match the model; is it one for another model?",
                                 tensors.file().parent_path().string()),
                     problems);
}

void check_adapter_values(const VisionLanguageModel& model, const AdapterTensors& tensors) {
  for (const auto& parameter : adapter_parameters(model)) {
    const at::Tensor values = tensors.tensor(parameter.name);
    const std::string file = tensors.file().string();
    if (!find_non_finite(values).empty()) {
      throw data_error("{}: {} has values that are not finite; take an earlier checkpoint of the adapter", file,
                       tensors.stored_name(parameter.name));
    }
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    if (overflows(values, dtype)) {
      throw data_error("{}: {} has values up to {:.3g}, more than {} holds; compute in bf16 or fp32", file,
                       tensors.stored_name(parameter.name), values.abs().max().item<double>(),
                       io::to_safetensors_dtype(dtype));
    }
  }
}

}  // namespace vlmtrain::models
