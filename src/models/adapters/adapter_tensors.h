#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/adapters/adapter_names.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::models {

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
