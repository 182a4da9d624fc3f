#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::prs_med {

/// LLaVA checkpoint whose weights and files `init --text-model` copies to a model that predicts
/// masks.
class LlavaSource {
 public:
  /// Opens the checkpoint in `folder` and compares its weights with its config.json. Logs tensors
  /// that are not used. Throws UserError: kUsage for another family, kBadData for missing or
  /// damaged weights.
  explicit LlavaSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return base_weights_.folder(); }
  /// Returns the checkpoint's config.json, with the sizes of an external vision tower added.
  const nlohmann::ordered_json& config() const { return config_; }
  /// Returns the number of embedding rows.
  int64_t vocab_size() const { return model_->output_weight().size(0); }
  /// Returns the JSON path of vocab_size in config(), which depends on LLaVA's layout.
  nlohmann::ordered_json::json_pointer get_vocab_size_pointer() const;
  /// Returns the tokenizer, processor and template files: file name → content.
  std::map<std::string, std::string> load_auxiliary_files() const;
  /// Returns the stored dtype of most elements.
  at::ScalarType dtype() const { return base_weights_.dtype(); }
  /// Returns the stored weight for `parameter`, under its checkpoint key. Vocabulary rows are added
  /// to match the parameter. Returns nothing for parameters that LLaVA does not have.
  std::optional<io::LazyTensor> find_weight(const nn::Parameter& parameter) const;

 private:
  void check_weights() const;

  nlohmann::ordered_json config_;
  std::unique_ptr<VisionLanguageModel> model_;  ///< on the meta device
  BaseWeights base_weights_;
};

}  // namespace vlmtrain::models::prs_med
