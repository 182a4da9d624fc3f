#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What a configuration means for the parts of a run. All throw UserError.

/// The keys without which there is nothing to train; all that are missing in one error (kUsage).
void check_required(const Config& config);

std::vector<io::Record> read_records(const std::filesystem::path& file);

/// `data_file` is the file whose folder relative image paths start from, unless data.image_root says otherwise.
models::ProcessorSettings processor_settings(const data::DataOptions& data, const std::filesystem::path& data_file);

data::LoaderSettings loader_settings(const Config& config);
models::FrozenParts frozen_parts(const ModelOptions& options);
void freeze(models::VisionLanguageModel& model, const ModelOptions& options);
engine::AdamWSettings adamw_settings(const engine::TrainingOptions& options);
engine::LearningRates learning_rates(const engine::TrainingOptions& options, double schedule_factor);

/// What the numbers of a run depend on: its value, as text, by the key that the user knows.
nlohmann::ordered_json run_fingerprint(const Config& config, int64_t samples);

}  // namespace vlmtrain::train
