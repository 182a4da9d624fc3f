#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

class VisionLanguageModel;  // vlmtrain/models/model.h

inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";
/// Prefix that peft adds to the path of a module.
inline constexpr std::string_view kAdapterTensorPrefix = "base_model.model.";

// Last components of the names of an adapter's parameters.
inline constexpr std::string_view kLoraASuffix = "lora_A.weight";
inline constexpr std::string_view kLoraBSuffix = "lora_B.weight";
inline constexpr std::string_view kLoraMagnitudeSuffix = "lora_magnitude_vector";  ///< of DoRA

/// Returns the error (kBadData) of an adapter without `file`.
UserError make_missing_adapter_error(const std::filesystem::path& file);

/// Opens the tensors of an adapter. Throws UserError (kBadData) if adapter_model.safetensors does
/// not exist.
io::SafetensorsFile open_adapter_weights(const std::filesystem::path& folder);

/// The name of an adapter's tensor without the prefixes of wrappers.
struct AdapterTensorName {
  std::string path;          ///< parameter's path, such as `model.layers.0.q_proj.lora_A.weight`
  std::string adapter_name;  ///< peft's name of the adapter, such as `default`; empty if the tensor's name has none
};

/// Parses a tensor's name. Removes `base_model.model.` (peft), `module.` (DDP),
/// `_fsdp_wrapped_module.`, `_orig_mod.` (torch.compile), `.modules_to_save.NAME.`, and NAME of
/// `lora_A.NAME.weight`.
AdapterTensorName parse_adapter_tensor_name(std::string_view name);

/// The paths of a model's modules. Maps the paths of older transformers releases to them. Does not
/// refer to the model after construction. Immutable.
class AdaptableModules {
 public:
  /// Collects the modules. `output` is the output projection's module if the model ties it to its
  /// embedding, else empty.
  explicit AdaptableModules(const VisionLanguageModel& model, std::string_view output = {});

  /// Returns the model's path of the parameter or module with the current or older name `path`;
  /// `path` itself if the model has no such module.
  std::string resolve_module_path(const std::string& path) const;

  /// Returns the paths of the model's Linears.
  const std::vector<std::string>& linears() const { return linears_; }

 private:
  /// Returns whether the model has the module or a parameter or adapter of it.
  bool contains(std::string_view path) const;

  std::set<std::string, std::less<>> module_paths_;
  std::vector<std::string> linears_;
};

/// The tensors of an adapter's folder, by the paths of their parameters in the model
/// (parse_adapter_tensor_name(), AdaptableModules). Thread-safe.
class AdapterTensors {
 public:
  /// Opens the tensors. `modules` are the modules of the adapter's model, needed during the call
  /// only; if null, names are not mapped to the model. Throws UserError (kBadData) as
  /// open_adapter_weights(), and if tensors are empty (shards of ZeRO-3), if two tensors belong to
  /// one parameter, or if the file has several adapters.
  explicit AdapterTensors(const std::filesystem::path& folder, const AdaptableModules* modules = nullptr);

  const std::filesystem::path& file() const { return file_.path(); }
  /// Returns the names, in the order of the file.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(const std::string& name) const { return stored_names_.contains(name); }
  /// Returns the tensor's name in the file.
  const std::string& stored_name(const std::string& name) const { return stored_names_.at(name); }
  /// The header, the values and the release of a tensor, as in io::SafetensorsFile. `name` must be
  /// one of names().
  const io::TensorInfo& info(const std::string& name) const { return file_.info(stored_name(name)); }
  at::Tensor tensor(const std::string& name) const;
  void release(const std::string& name) const { file_.release(stored_name(name)); }

  /// Returns the paths of the modules with a lora_A.
  std::vector<std::string> list_adapted_module_paths() const;

 private:
  void reject_empty_tensors() const;

  io::SafetensorsFile file_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::string> stored_names_;
};

}  // namespace vlmtrain::models
