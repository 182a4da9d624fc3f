#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoints/tensor_source.h"
#include "models/network/llama.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::brain_llava {

/// The text model of a checkpoint of Llama, Mistral or Qwen2, or of a LLaVA in either layout.
class LanguageSource {
 public:
  /// Opens a checkpoint. Throws UserError: kUsage for other models, kBadData for damaged files.
  explicit LanguageSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return tensors_.path(); }
  /// Returns the text model's config in the form of a `text_config`.
  const nlohmann::ordered_json& config() const { return config_; }
  int64_t vocab_size() const { return text_.vocab_size; }
  /// Returns the tokenizer and template files, by name.
  std::map<std::string, std::string> auxiliary_files() const;
  /// Returns the dtype of the embedding.
  at::ScalarType dtype() const;
  /// Throws UserError (kBadData), which lists missing tensors of `parameters` and shape mismatches
  /// other than vocabulary rows.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// Returns a parameter's weight under its name, resized to its rows; nothing for parameters
  /// outside of the text model.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  /// Returns the stored name of a parameter; nothing for parameters outside of the text model.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;

  nlohmann::ordered_json config_;
  TensorSource tensors_;
  LlamaConfig text_;
  std::string model_prefix_, output_prefix_;  // prefixes of stored names of the model and of the output projection
};

/// Implements models::assemble() for presets with a volume tower.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models::brain_llava
