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
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  bool use_rslora = false;
  bool use_dora = false;
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;  ///< whether embedding and output of a tied base stay tied
  nlohmann::json target_modules;     ///< a list of names, a regular expression or null
  nlohmann::json rank_pattern;       ///< ranks by module names or expressions
  nlohmann::json alpha_pattern;

  /// Throws UserError (kBadData) if target_modules names a single module without tensors.
  /// `adapted_paths` are the modules with tensors, `modules` those of the base or null.
  void check_targets(const std::vector<std::string>& adapted_paths, const AdapterModules* modules,
                     const std::string& source) const;

  /// Warns if target_modules names Linears of the base by suffix and some of these have no tensors.
  void warn_about_partial_targets(const std::vector<std::string>& adapted_paths, const AdapterModules& modules,
                                  const std::string& source) const;

  /// Throws UserError (kBadData) if a pattern gives a module of `paths` another rank or alpha.
  void check_patterns(const std::vector<std::string>& paths, const std::string& source) const;
};

/// Reads `folder`/adapter_config.json. Ignores harmless keys, warns once about unknown keys. Throws
/// UserError (kBadData) for keys that change the adapter's computation in an unsupported way.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

/// Returns the content of adapter_config.json for the adapters of `model`, whose base checkpoint is
/// `base`. REQUIRES: the model has adapters.
std::string make_adapter_config(const VisionLanguageModel& model, const std::filesystem::path& base);

/// Returns the settings to load the base of an adapter with.
LoadSettings make_base_load_settings(const nn::LoraSettings& lora);

}  // namespace vlmtrain::models
