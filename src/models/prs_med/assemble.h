#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "vlmtrain/io/lazy_tensors.h"
#include "vlmtrain/models/assemble.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::prs_med {

/// The checkpoint of a LLaVA, whose weights and files a model that draws masks takes over.
class TextSource {
 public:
  /// Throws UserError: kUsage where it is no LLaVA's; kBadData where weights are missing or damaged.
  explicit TextSource(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return base_.folder(); }
  /// Its config.json, with the sizes of a vision tower that lies elsewhere.
  const nlohmann::ordered_json& config() const { return config_; }
  /// Rows of the embedding.
  int64_t vocab_size() const { return model_->output_weight().size(0); }
  /// Where config.json has the vocabulary's size.
  nlohmann::ordered_json::json_pointer vocab_size_key() const;
  /// What else lies in the folder, by name: tokenizer, processor and template files.
  std::map<std::string, std::string> auxiliary_files() const;
  /// That most of its weights have.
  at::ScalarType dtype() const { return base_.dtype(); }
  /// A parameter's weight as it is stored, under the checkpoint's name, with as many rows as the parameter; nothing
  /// for a parameter that no LLaVA has.
  std::optional<io::LazyTensor> weight(const nn::Parameter& parameter) const;

 private:
  void check_weights() const;

  nlohmann::ordered_json config_;
  std::unique_ptr<VisionLanguageModel> model_;  ///< on the meta device
  BaseWeights base_;
};

/// models::assemble() of a preset whose model draws masks.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models::prs_med
