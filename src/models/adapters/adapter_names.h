#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// What an adapter's tensor is called, apart from how programs wrap models.
struct AdapterTensorName {
  std::string path;          ///< of a parameter, such as `model.layers.0.q_proj.lora_A.weight`
  std::string adapter_name;  ///< PEFT's name of the adapter where it stands in the tensor's name, such as `default`
};

/// Removes from a tensor's name what PEFT and the wrappers of others put in it: `base_model.model.`, `module.` (DDP),
/// `_fsdp_wrapped_module.`, `_orig_mod.` (torch.compile), `.modules_to_save.NAME.`, and NAME of
/// `lora_A.NAME.weight`.
AdapterTensorName parse_adapter_tensor_name(std::string_view name);

/// The modules of a model, and what older releases of transformers called them.
class AdapterModules {
 public:
  /// `output`: the output projection's module in a model that ties it to its embedding; empty for others.
  explicit AdapterModules(const VisionLanguageModel& model, std::string_view output = {});

  /// Returns the path of the model's parameter or module that `path` stands for, in this or an older spelling; `path`
  /// itself where the model has none.
  std::string resolve(const std::string& path) const;

  /// The paths of the model's Linears.
  const std::vector<std::string>& linears() const { return linears_; }

 private:
  /// Whether the model has it, or a parameter or adapter of it.
  bool contains(std::string_view path) const;

  std::set<std::string, std::less<>> modules_;
  std::vector<std::string> linears_;
};

}  // namespace vlmtrain::models
