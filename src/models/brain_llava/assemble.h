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
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/weights/parameters.h"

namespace vlmtrain::models::brain_llava {

/// The text model of a checkpoint that `init --text-model` copies: a Llama, Mistral or Qwen2, or
/// the text model of a LLaVA in transformers' layout or in that of LLaVA's own code.
class TextModelSource {
 public:
  /// Opens the checkpoint in `folder`. Throws UserError: kUsage for other models, kBadData for
  /// damaged files.
  explicit TextModelSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return tensors_.path(); }
  /// Returns the text model's config, in the form of a `text_config` of transformers.
  const nlohmann::ordered_json& config() const { return config_; }
  int64_t vocab_size() const { return text_config_.vocab_size; }
  /// Reads the tokenizer and template files: file name → content. Image settings are omitted.
  std::map<std::string, std::string> load_auxiliary_files() const;
  /// Returns the stored dtype of the embedding, which new weights of the model get, too.
  at::ScalarType dtype() const;
  /// Compares the stored tensors with `parameters`, the parameters of the new model; ignores those
  /// outside of the text model. Throws UserError (kBadData) with a list of missing tensors and of
  /// unsupported dtypes and shapes. The number of vocabulary rows may differ.
  void check_weights(const std::vector<nn::Parameter>& parameters) const;
  /// Returns the stored weight for `parameter`, in the stored dtype and under the parameter's name.
  /// Vocabulary rows are added or removed to match the parameter. Returns nothing for parameters
  /// outside of the text model. The tensor is read when it is materialized, also after this object
  /// is destroyed.
  std::optional<io::LazyTensor> find_weight(const nn::Parameter& parameter) const;

 private:
  /// Returns the stored tensor's name; nothing for parameters outside of the text model.
  std::optional<std::string> find_stored_tensor_name(const nn::Parameter& parameter) const;

  nlohmann::ordered_json config_;
  TensorSource tensors_;
  LlamaConfig text_config_;
  std::string model_prefix_, output_prefix_;  // prefixes of stored names of the model and of the output projection
};

}  // namespace vlmtrain::models::brain_llava
