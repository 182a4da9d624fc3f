#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::models {
class Processor;
}

namespace vlmtrain::train {

/// Throws UserError (kUsage), with all missing keys, unless model.path, data.train and output.dir
/// are set.
void check_required_keys(const Config& config);

/// Throws UserError (kUsage) for a loss scale without fp16.
void check_loss_scale(const engine::TrainingOptions& training);

/// Throws UserError (kUsage) for split masters or none without bf16.
void check_master_weights(const engine::TrainingOptions& training);

/// Throws UserError (kUsage) if a learning rate is set for a part of the model that is frozen.
void check_learning_rates(const Config& config);

/// Throws UserError (kUsage) if training.eval_steps is set without data.eval, or if a key of the
/// evaluations needs another key or model: early stopping without evaluations, best_metric=dice for
/// a model without masks. Reads model.path's config.json.
void check_evaluation_options(const Config& config);

/// Throws UserError (kUsage) for keys that are missing or contradict each other. Makes all checks
/// above, and those of batch scaling, loss weights and the micro-batch size. Reads only the
/// checkpoint's config.json.
void check_config(const Config& config);

/// Makes the checks that a run makes before it reads samples: check_config(), the task settings for
/// the tasks of `records`, whether a run in output.dir can resume, and the trained parts of the
/// model. Throws UserError. Builds the model on the meta device; reads no weights and writes
/// nothing.
void run_preflight_checks(const Config& config, const io::Records& records);

/// Reads up to `max_samples` of `records`, spread evenly. Throws UserError (kBadData), with the
/// number of bad samples and the first one, if any is bad. Does nothing with
/// data.check_at_start=false or data.on_bad_sample=skip. `file`: the data set's name in messages.
void check_no_bad_samples(const io::Records& records, const models::Processor& processor, const Config& config,
                          const std::filesystem::path& file, int64_t max_samples);

/// Checks the files that a run will write into output.dir. Throws UserError: kUsage if an input of
/// the run (configuration, checkpoint, adapter, data) is one of these files, also through a link,
/// if an input lies in a folder that the run clears, or if output.dir has such a file that no run
/// wrote; kFailed if a pipe or device has the name of such a file. `config_file` may be
/// output.dir's own config.yaml if it has exactly the text that a run writes.
void check_output_files(const Config& config, const std::filesystem::path& config_file);

/// The parts of a model that have settings of their own.
struct ModelTraits {
  bool predicts_masks = false;
  bool takes_media = true;  ///< has a vision tower
  bool has_per_layer_embeddings = false;

  /// Reads the traits of the model of `folder`/config.json. Throws UserError (kBadData).
  static ModelTraits read(const std::filesystem::path& folder);
};

/// Returns one sentence for each setting that differs from its default and has no effect, because
/// no sample has its kind of media, because the model lacks a part, or because another setting
/// disables it. `media_counts` counts the samples of data.train by media; with no samples, settings
/// of media are not reported.
std::vector<std::string> find_unused_settings(const Config& config, const data::SampleCountsByMediaKind& media_counts,
                                              const ModelTraits& model);

}  // namespace vlmtrain::train
