#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

/// What adapter_config.json (PEFT's LoraConfig) says that matters for reading the adapter.
struct AdapterConfig {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  bool use_rslora = false;
  bool use_dora = false;
  std::vector<std::string> modules_to_save;
  bool ensure_weight_tying = false;  ///< embedding and output of a tied base stay tied
  nlohmann::json target_modules;     ///< a list of names, a regular expression or null
  nlohmann::json rank_pattern;       ///< of modules' names and expressions to ranks
  nlohmann::json alpha_pattern;

  /// Throws UserError (kBadData) where a module that target_modules name for itself has no tensors, and so would be
  /// taken for one without an adapter. `adapted_paths`: the paths with tensors; `modules`: of the base, or null.
  void check_targets(const std::vector<std::string>& adapted_paths, const AdapterModules* modules,
                     const std::string& source) const;

  /// Warns where target_modules name Linears of the base by their ends and some of these have no tensors.
  void warn_about_partial_targets(const std::vector<std::string>& adapted_paths, const AdapterModules& modules,
                                  const std::string& source) const;

  /// Throws UserError (kBadData) that names the pattern, where one gives a module of `paths` another rank or alpha.
  void check_patterns(const std::vector<std::string>& paths, const std::string& source) const;
};

/// Reads `folder`/adapter_config.json. Every key is read, known to be harmless, refused by name where it changes what
/// the adapter computes, or named in one warning. Throws UserError (kBadData).
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

/// Returns the content of adapter_config.json for the adapters of `model`, whose base checkpoint is `base`. REQUIRES:
/// the model has adapters.
std::string make_adapter_config(const VisionLanguageModel& model, const std::filesystem::path& base);

/// What the base of an adapter may lack when it is loaded or merged.
LoadSettings make_base_load_settings(const nn::LoraSettings& lora);

}  // namespace vlmtrain::models
