#pragma once

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Logs what was found out about data.train before the first step: notices of its samples, where all were looked at;
/// that none has an image, video or volume, in all or of a source; settings without effect on such data.
void log_training_data_remarks(const Config& config, const data::DataSet& records,
                               const data::SampleIndex& sample_index);

/// The same of data.eval: notices and media alone.
void log_evaluation_data_remarks(const Config& config, const data::SampleIndex& sample_index);

/// Logs that samples of data.eval are trained on: warns where their conversations and media are, and mentions those
/// that share a file. `eval_index` and `train_index` have prints where the samples were looked at; without them only a
/// file that both keys name is found.
void log_train_eval_overlap(const Config& config, const data::SampleIndex& eval_index, data::SampleIndex& train_index);

}  // namespace vlmtrain::train
