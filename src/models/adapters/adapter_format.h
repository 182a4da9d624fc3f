#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";
/// What PEFT puts before a module's path, and an adapter's parameters after it.
inline constexpr std::string_view kAdapterPrefix = "base_model.model.";
inline constexpr std::string_view kLoraA = "lora_A.weight";
inline constexpr std::string_view kLoraB = "lora_B.weight";
inline constexpr std::string_view kMagnitude = "lora_magnitude_vector";  ///< DoRA's

/// An adapter's tensors. Throws UserError (kBadData) where there are none, or only pickled ones.
io::SafetensorsFile open_adapter(const std::filesystem::path& folder);

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

/// The tensors of an adapter's folder by the paths of the parameters that they are for, whatever the program that wrote
/// them put around these (parse_adapter_tensor_name) and whatever the modules were called then (AdapterModules). Safe
/// to use from several threads.
class AdapterTensors {
 public:
  /// `modules`: of the model that the adapter is for; null: names are taken as they are. Throws UserError (kBadData)
  /// where there are no tensors, or only pickled ones, where tensors are empty (parts that ZeRO-3 left elsewhere), or
  /// where two of them have one name.
  explicit AdapterTensors(const std::filesystem::path& folder, const AdapterModules* modules = nullptr);

  const std::filesystem::path& file() const { return file_.path(); }
  /// In the order of the file.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return stored_names_.contains(name); }
  /// The name in the file.
  const std::string& stored_name(const std::string& name) const { return stored_names_.at(name); }
  /// See io::SafetensorsFile.
  const io::TensorInfo& info(const std::string& name) const { return file_.info(stored_name(name)); }
  at::Tensor tensor(const std::string& name) const { return file_.tensor(stored_name(name)); }
  void release(const std::string& name) const { file_.release(stored_name(name)); }

  /// The paths of the modules that there is a lora_A for.
  std::vector<std::string> adapted_paths() const;
  /// The names of tensors that are no part of a low-rank adapter: weights that it brings whole.
  std::vector<std::string> full_tensors() const;

 private:
  void refuse_empty() const;

  io::SafetensorsFile file_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::string> stored_names_;
};

}  // namespace vlmtrain::models
