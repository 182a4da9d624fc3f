#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <vector>

#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_changes.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// Where a run goes on.
struct ResumePoint {
  RunState state;                      ///< as the checkpoint has it
  std::vector<SettingChange> changes;  ///< since then
};

/// Throws UserError: where training.resume forbids it, or the settings are others than training.resume allows.
ResumePoint load_resume_point(const std::filesystem::path& checkpoint, const Config& config,
                              const nlohmann::ordered_json& fingerprint);

}  // namespace vlmtrain::train
