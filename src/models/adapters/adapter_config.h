#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

/// The part of adapter_config.json (peft's LoraConfig) that reading an adapter needs.
struct AdapterConfig {
  int64_t rank = 0;  ///< `r`
  double alpha = 0;  ///< `lora_alpha`
  double dropout = 0;
  bool use_rslora = false;
  bool use_dora = false;
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;  ///< whether embedding and output of a tied base stay tied
  nlohmann::json target_modules;     ///< a list of names, a regular expression or null
  nlohmann::json rank_pattern;       ///< object of ranks by regular expression of module paths
  nlohmann::json alpha_pattern;      ///< like rank_pattern, with values of alpha

  /// Throws UserError (kBadData) if an entry of target_modules is the full path of a module without
  /// tensors. `adapted_paths` are the paths of the modules with tensors. `modules` are the modules
  /// of the base, or null if it is unknown. `source` names adapter_config.json in messages, here
  /// and below.
  void check_target_modules(const std::vector<std::string>& adapted_paths, const AdaptableModules* modules,
                            const std::string& source) const;

  /// Warns if target_modules names Linears of the base by suffix and some of these have no tensors.
  void warn_about_partial_targets(const std::vector<std::string>& adapted_paths, const AdaptableModules& modules,
                                  const std::string& source) const;

  /// Throws UserError (kBadData) if a pattern gives a module of `paths` another rank or alpha.
  void check_rank_and_alpha_patterns(const std::vector<std::string>& paths, const std::string& source) const;
};

/// Reads `folder`/adapter_config.json. Ignores harmless keys. Warns about unknown keys, once per
/// file. Throws UserError (kBadData) for keys that change the adapter's computation in an
/// unsupported way.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

/// Returns the content of adapter_config.json for the adapters of `model`, whose base checkpoint is
/// `base`. REQUIRES: the model has adapters.
std::string make_adapter_config(const VisionLanguageModel& model, const std::filesystem::path& base);

/// Returns the settings for loading the base of an adapter. The base may lack modules that the
/// adapter saves in full, or have them with another number of rows.
LoadSettings make_base_load_settings(const nn::LoraSettings& lora);

}  // namespace vlmtrain::models
