#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "models/checkpoint_copy.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

/// Adapter of a parity case's checkpoint, whose files a test edits to match those of other
/// programs.
class AdapterFolder {
 public:
  explicit AdapterFolder(const std::string& case_name,
                         nn::LoraSettings lora = {.rank = 2, .target_modules = {"q_proj"}})
      : base_(case_name), path_(folder_.path() / "adapter") {
    const auto model = build_model(base(), at::kCPU, at::kFloat, lora);
    load_weights(*model, base());
    initialize_adapter(*model, /*seed=*/1);
    const at::NoGradGuard no_gradients;
    for (const auto& parameter : model->parameters().all()) {
      if (parameter.is_saved_with_adapter()) parameter.tensor.detach().add_(at::full_like(parameter.tensor, 0.125));
    }
    std::filesystem::create_directories(path_);
    save_adapter(*model, base(), path_);
  }

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& base() const { return base_.path(); }
  const CheckpointCopy& base_copy() const { return base_; }
  std::filesystem::path make_path(const std::string& name) const { return folder_.path() / name; }

  using Tensors = std::map<std::string, at::Tensor>;
  Tensors tensors() const {
    const io::SafetensorsFile file(path_ / "adapter_model.safetensors");
    Tensors result;
    for (const auto& name : file.names()) result.emplace(name, file.tensor(name).clone());
    return result;
  }
  void write(const Tensors& tensors) const {
    io::write_safetensors(path_ / "adapter_model.safetensors", io::NamedTensors(tensors.begin(), tensors.end()));
  }
  /// Renames the tensors.
  void rename(const std::function<std::string(const std::string& name)>& rename_tensor) const {
    Tensors renamed;
    for (const auto& [name, tensor] : tensors()) renamed.emplace(rename_tensor(name), tensor);
    write(renamed);
  }
  void edit(const std::string& file, const std::function<void(nlohmann::json& content)>& edit_content) const {
    auto content = std::filesystem::exists(path_ / file) ? io::read_json(path_ / file) : nlohmann::json::object();
    edit_content(content);
    io::write_file(path_ / file, content.dump());
  }

  std::unique_ptr<VisionLanguageModel> load() const { return load_model(path_, at::kCPU, at::kFloat); }
  std::filesystem::path merge(const MergeSettings& settings = {}) const {
    const auto out = make_path("merged");
    std::filesystem::remove_all(out);
    merge_adapter(path_, out, settings);
    return out;
  }

 private:
  const parity::TemporaryFolder folder_;
  const CheckpointCopy base_;
  std::filesystem::path path_;
};

inline std::map<std::string, at::Tensor> collect_values(const VisionLanguageModel& model) {
  std::map<std::string, at::Tensor> result;
  for (const auto& parameter : model.parameters().all()) result.emplace(parameter.name, parameter.tensor.detach());
  return result;
}

inline std::string replace_first(std::string text, const std::string& pattern, const std::string& replacement) {
  const size_t position = text.find(pattern);
  return position == std::string::npos ? text : text.replace(position, pattern.size(), replacement);
}

}  // namespace vlmtrain::models
