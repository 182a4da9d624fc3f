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
#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/nn/parameters.h"

namespace vlmtrain::models::brain_llava {

/// The text model of a checkpoint: of a plain Llama, Mistral or Qwen2, or of a LLaVA in either of its layouts.
class LanguageSource {
 public:
  /// Throws UserError: kUsage where it is none of these, kBadData where it is damaged.
  explicit LanguageSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return tensors_.path(); }
  /// As a section `text_config`.
  const nlohmann::ordered_json& config() const { return config_; }
  int64_t vocab_size() const { return text_.vocab_size; }
  /// Tokenizer and template files, by name.
  std::map<std::string, std::string> auxiliary_files() const;
  /// Of its embedding.
  at::ScalarType dtype() const;
  /// Throws UserError (kBadData) that lists what of `parameters` it has not, or of other shapes but for the rows of the
  /// vocabulary.
  void check(const std::vector<nn::Parameter>& parameters) const;
  /// A parameter's weight, under its name, with as many rows; nothing for one that is none of a text model's.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  /// What it calls a parameter; nothing for one that is none of a text model's.
  std::optional<std::string> find_stored_name(const nn::Parameter& parameter) const;

  nlohmann::ordered_json config_;
  TensorSource tensors_;
  LlamaConfig text_;
  std::string model_prefix_, output_prefix_;  // what its names of the model and of the output projection begin with
};

/// models::assemble() of a preset whose model takes volumes.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models::brain_llava
