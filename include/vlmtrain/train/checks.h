#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/data/media_census.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The keys without which there is nothing to train; all that are missing in one error (kUsage).
void check_required_keys(const Config& config);

/// Throws UserError (kUsage) for a loss scale without fp16.
void check_loss_scale(const engine::TrainingOptions& training);

/// Throws UserError (kUsage) for the learning rate of a part of the model that stays as it is.
void check_learning_rates(const Config& config);

/// Throws UserError (kUsage) where evaluations are asked for without data.eval, or what needs them without them.
void check_evaluation(const Config& config);

/// What a run refuses before it touches a file: keys that are missing or contradict each other (kUsage).
void check_config(const Config& config);

/// All that a run refuses before it looks at its samples, plans and loads: its keys, what of the model is trained, the
/// tasks of `records`, the run that output.dir holds already. Reads no weights and writes nothing. Throws UserError.
void preflight_check(const Config& config, const io::Records& records);

/// Looks at `max_samples` of the data set in `file`, spread over it, as data.check_at_start says, unless bad samples
/// are to be skipped. Throws UserError (kBadData) that says how many are bad and names the first.
void check_no_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                          const std::filesystem::path& file, int64_t max_samples);

/// Looks at what stands where the run will write, before it writes anything: UserError (kUsage) where an input of the
/// run (its configuration, checkpoint, adapter, data) is a file that it writes into output.dir, under whatever name, or
/// stands in a folder that it clears; UserError (kFailed) where a pipe or device has the name of such a file. A
/// `config_file` that a run resolved may be the folder's own config.yaml: it is written again with the same content.
void check_run_files(const Config& config, const std::filesystem::path& config_file);

/// Returns a sentence for each setting that is not its default and that changes nothing, with the reason: the samples
/// have no media that it is about, or another setting turns it off. `census`: of the samples of data.train.
std::vector<std::string> find_unused_settings(const Config& config, const data::MediaCounts& census,
                                              bool predicts_masks);

}  // namespace vlmtrain::train
