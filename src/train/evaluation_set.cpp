#include "train/evaluation_set.h"

#include "train/data_check.h"
#include "train/sample_predictions.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/planner/worst_case.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

EvaluationSet::EvaluationSet(const Config& config, const models::Processor& processor,
                             const std::filesystem::path& cache)
    : records_(evaluation_records(config)) {
  if (config.evaluation.samples) {
    auto places = spread(*records_, *config.evaluation.samples);
    records_ = std::make_shared<io::ChosenRecords>(std::move(records_), std::move(places));
  }
  look(config, processor, cache);
}

void EvaluationSet::look(const Config& config, const models::Processor& processor, const std::filesystem::path& cache) {
  const auto& file = config.data.eval;
  const auto outlines = look_at_data(*records_, processor, config, file, cache);
  making_bytes_ = outlines.making_bytes;
  data::Ledger ledger(file, records_->size());
  data::settle_problems(outlines.problems, ledger, config.data.on_bad_sample, *records_);
  std::vector<int64_t> usable;
  for (size_t i = 0; i < outlines.shapes.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    if (outlines.problems.contains(place)) continue;
    if (outlines.shapes[i]) measured_.emplace_back(outlines.ids[i], *outlines.shapes[i]);
    usable.push_back(place);
  }
  if (usable.empty()) {
    throw data_error("data.eval: {}: none of the {} samples can be used; the first: {}", file, records_->size(),
                     outlines.problems.empty() ? "it has no records" : outlines.problems.begin()->second.message);
  }
  dropped_ = std::ssize(outlines.problems);
  if (dropped_ > 0) records_ = std::make_shared<io::ChosenRecords>(std::move(records_), std::move(usable));
}

std::vector<planner::SampleBatch> EvaluationSet::worst_batches(int64_t batch_size) const {
  std::vector<planner::MeasuredSample> measured;
  for (const auto& [id, shape] : measured_) measured.push_back({id, shape});
  return planner::worst_batches(std::move(measured), batch_size);
}

}  // namespace vlmtrain::train
