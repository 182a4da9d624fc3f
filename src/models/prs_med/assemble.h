#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::prs_med {

/// LLaVA checkpoint whose weights and files a model that draws masks takes over.
class TextSource {
 public:
  /// Opens the checkpoint. Throws UserError: kUsage for another family; kBadData for missing or
  /// damaged weights.
  explicit TextSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return base_.folder(); }
  /// Returns its config.json, completed with the sizes of an external vision tower.
  const nlohmann::ordered_json& config() const { return config_; }
  /// Returns the number of embedding rows.
  int64_t vocab_size() const { return model_->output_weight().size(0); }
  /// Returns the path of the vocabulary's size in config.json.
  nlohmann::ordered_json::json_pointer vocab_size_key() const;
  /// Returns the other files of the folder by name: tokenizer, processor and template files.
  std::map<std::string, std::string> auxiliary_files() const;
  /// Returns the dtype of most of its weights.
  at::ScalarType dtype() const { return base_.dtype(); }
  /// Returns a parameter's stored weight under its checkpoint key, with as many rows as the
  /// parameter; nothing for a parameter that LLaVA does not have.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  void check_weights() const;

  nlohmann::ordered_json config_;
  std::unique_ptr<VisionLanguageModel> model_;  ///< on the meta device
  BaseWeights base_;
};

/// Implements models::assemble() for presets whose model draws masks.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models::prs_med
