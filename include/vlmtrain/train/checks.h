#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Throws UserError (kUsage) that lists every missing key without which there is nothing to train.
void check_required_keys(const Config& config);

/// Throws UserError (kUsage) for a loss scale without fp16.
void check_loss_scale(const engine::TrainingOptions& training);

/// Throws UserError (kUsage) for the learning rate of a part of the model that stays as it is.
void check_learning_rates(const Config& config);

/// Throws UserError (kUsage) where evaluations are requested without data.eval, or where a key that
/// needs evaluations is set without them.
void check_evaluation(const Config& config);

/// Throws UserError (kUsage) for keys that are missing or contradict each other. Reads no file but
/// the checkpoint's config.json.
void check_config(const Config& config);

/// Throws UserError for everything that a run refuses before it reads samples, plans and loads: its
/// keys, the trained parts of the model, the tasks of `records`, a run in output.dir that cannot be
/// continued. Reads no weights and writes nothing.
void preflight_check(const Config& config, const io::Records& records);

/// Throws UserError (kBadData), with the number of bad samples and the first of them, unless
/// data.on_bad_sample skips them. Reads `max_samples` of the data set in `file`, spread evenly over
/// it.
void check_no_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                          const std::filesystem::path& file, int64_t max_samples);

/// Checks the paths that a run will write, before it writes anything. Throws UserError: kUsage
/// where an input of the run (configuration, checkpoint, adapter, data) is a file that the run
/// writes into output.dir, under whatever name, or lies in a folder that the run clears; kFailed
/// where a pipe or device has the name of such a file. A `config_file` that a run resolved may be
/// output.dir's own config.yaml: the run writes the same content.
void check_run_files(const Config& config, const std::filesystem::path& config_file);

/// Returns one sentence for each setting that differs from its default and has no effect: no sample
/// has the media it is about, or another setting turns it off. `census` counts the samples of
/// data.train.
std::vector<std::string> find_unused_settings(const Config& config, const data::MediaCounts& census,
                                              bool predicts_masks);

}  // namespace vlmtrain::train
