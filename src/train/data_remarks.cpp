#include "train/data_remarks.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "train/without_effect.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/data/media_census.h"
#include "vlmtrain/models/mask_families.h"

namespace vlmtrain::train {

namespace {

constexpr const char* kMedia = "an image, video or volume";

void warn_if_no_media(const char* key, const std::string& dataset, const data::MediaCounts& census,
                      const data::SampleIndex& sample_index) {
  if (!census.has_no_media()) return;
  spdlog::warn(
      "{} {}: none of the {}{} has {}, so the model sees nothing and works on text alone; if there should be media, "
      "name the keys that hold them in data.columns (docs/data.md), and look at a sample with vlmtrain inspect",
      key, to_printable(dataset), pluralize(census.samples, "usable sample"),
      sample_index.is_complete ? "" : " that were looked at", kMedia);
}

/// Whether both name the same file or folder.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

}  // namespace

void log_training_data_remarks(const Config& config, const data::DataSet& records,
                               const data::SampleIndex& sample_index) {
  const std::string name = config.data.train.name();
  if (sample_index.is_complete) data::log_notices(sample_index.notices, name, records.size());
  const auto census = data::count_media(sample_index.shapes);
  warn_if_no_media("data.train", name, census, sample_index);
  const size_t num_sources = census.has_no_media() || records.sources().size() == 1 ? 0 : records.sources().size();
  for (size_t source = 0; source < num_sources; ++source) {
    const auto [begin, end] = records.record_range(source);
    const auto source_census = data::count_media(sample_index.shapes, begin, end);
    if (!source_census.has_no_media()) continue;
    spdlog::info("data {}: none of the {} of this source has {}", to_printable(records.sources()[source].source.path),
                 pluralize(source_census.samples, "sample"), kMedia);
  }
  for (const auto& remark : find_unused_settings(config, census, models::predicts_masks(config.model.path))) {
    spdlog::warn("{}", remark);
  }
}

void log_evaluation_data_remarks(const Config& config, const data::SampleIndex& sample_index) {
  if (sample_index.is_complete) data::log_notices(sample_index.notices, config.data.eval, sample_index.shapes.size());
  // A few samples that a run holds out may be without media by chance; what is said of data.train is said of them.
  if (config.evaluation.is_enabled() && data::parse_hold_out_share(config.data)) return;
  warn_if_no_media("data.eval", config.data.eval, data::count_media(sample_index.shapes), sample_index);
}

void log_train_eval_overlap(const Config& config, const data::SampleIndex& eval_index, data::SampleIndex& train_index) {
  const std::string& name = config.data.eval;
  if (eval_index.fingerprints.content_hashes.empty() || train_index.fingerprints.content_hashes.empty()) {
    const auto is_eval_file = [&](const data::Source& source) { return is_same_file(source.path, name); };
    if (std::ranges::any_of(config.data.train.all(), is_eval_file)) {
      spdlog::warn("data.eval: {} is trained on too (data.train), so evaluations show what was learned by heart",
                   to_printable(name));
    }
    return;
  }
  const auto overlap = data::find_shared_content(eval_index.fingerprints, train_index.fingerprints);
  const auto usable = eval_index.num_usable();
  const auto get_printable_id = [&](int64_t index) { return to_printable(eval_index.ids[index]); };
  if (!overlap.samples.empty()) {
    spdlog::warn(
        "data.eval: {} of {} are trained on too, word for word and with the same media, such as {}: evaluations show "
        "what was learned by heart; vlmtrain inspect names each",
        with_commas(std::ssize(overlap.samples)), pluralize(usable, "sample"),
        get_printable_id(overlap.samples.front()));
  }
  if (!overlap.samples_with_shared_files.empty()) {
    spdlog::info("data.eval: {} of {} have an image, video or volume that is trained on with other words, such as {}",
                 with_commas(std::ssize(overlap.samples_with_shared_files)), pluralize(usable, "sample"),
                 get_printable_id(overlap.samples_with_shared_files.front()));
  }
}

}  // namespace vlmtrain::train
