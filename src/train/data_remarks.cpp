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

void warn_if_blind(const char* key, const std::string& dataset, const data::MediaCensus& census,
                   const data::Outlines& outlines) {
  if (!census.is_blind()) return;
  spdlog::warn(
      "{} {}: none of the {}{} has {}, so the model sees nothing and works on text alone; if there should be media, "
      "name the keys that hold them in data.columns (docs/data.md), and look at a sample with vlmtrain inspect",
      key, printable(dataset), counted(census.samples, "usable sample"), outlines.are_all ? "" : " that were looked at",
      kMedia);
}

/// Whether both name the same file or folder.
bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  return one == other || std::filesystem::equivalent(one, other, error);
}

}  // namespace

void log_remarks_on_training(const Config& config, const data::DataSet& records, const data::Outlines& outlines) {
  const std::string name = config.data.train.name();
  if (outlines.are_all) data::log_notices(outlines.notices, name, records.size());
  const auto census = data::media_census(outlines.shapes);
  warn_if_blind("data.train", name, census, outlines);
  const size_t sources = census.is_blind() || records.parts().size() == 1 ? 0 : records.parts().size();
  for (size_t part = 0; part < sources; ++part) {
    const auto [begin, end] = records.range_of(part);
    const auto own = data::media_census(outlines.shapes, begin, end);
    if (!own.is_blind()) continue;
    spdlog::info("data {}: none of the {} of this source has {}", printable(records.parts()[part].source.path),
                 counted(own.samples, "sample"), kMedia);
  }
  for (const auto& remark : settings_without_effect(config, census, models::draws_masks(config.model.path))) {
    spdlog::warn("{}", remark);
  }
}

void log_remarks_on_evaluation(const Config& config, const data::Outlines& outlines) {
  if (outlines.are_all) data::log_notices(outlines.notices, config.data.eval, outlines.shapes.size());
  // A few samples that a run holds out may be without media by chance; what is said of data.train is said of them.
  if (config.evaluation.are_wanted() && data::share_to_hold_out(config.data)) return;
  warn_if_blind("data.eval", config.data.eval, data::media_census(outlines.shapes), outlines);
}

void log_trained_evaluation(const Config& config, const data::Outlines& evaluated, data::Outlines& trained) {
  const std::string& name = config.data.eval;
  if (evaluated.prints.contents.empty() || trained.prints.contents.empty()) {
    const auto is_evaluated = [&](const data::Source& source) { return is_same_file(source.path, name); };
    if (std::ranges::any_of(config.data.train.all(), is_evaluated)) {
      spdlog::warn("data.eval: {} is trained on too (data.train), so evaluations show what was learned by heart",
                   printable(name));
    }
    return;
  }
  const auto shared = data::shared_content(evaluated.prints, trained.prints);
  const auto usable = evaluated.usable();
  const auto id_of = [&](int64_t index) { return printable(evaluated.ids[index]); };
  if (!shared.samples.empty()) {
    spdlog::warn(
        "data.eval: {} of {} are trained on too, word for word and with the same media, such as {}: evaluations show "
        "what was learned by heart; vlmtrain inspect names each",
        grouped(std::ssize(shared.samples)), counted(usable, "sample"), id_of(shared.samples.front()));
  }
  if (!shared.with_files.empty()) {
    spdlog::info("data.eval: {} of {} have an image, video or volume that is trained on with other words, such as {}",
                 grouped(std::ssize(shared.with_files)), counted(usable, "sample"), id_of(shared.with_files.front()));
  }
}

}  // namespace vlmtrain::train
