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
  outlines_ = look_at_data(*records_, processor, config, file, cache);
  data::Ledger ledger(file, records_->size());
  data::settle_problems(outlines_.problems, outlines_.ids, ledger, config.data.on_bad_sample, *records_);
  std::vector<int64_t> usable;
  for (int64_t place = 0; place < records_->size(); ++place) {
    if (!outlines_.problems.contains(place)) usable.push_back(place);
  }
  if (usable.empty()) {
    throw data_error("data.eval: {}: none of the {} samples can be used; the first: {}", file, records_->size(),
                     outlines_.problems.empty() ? "it has no records" : outlines_.problems.begin()->second.message);
  }
  if (dropped() > 0) records_ = std::make_shared<io::ChosenRecords>(std::move(records_), std::move(usable));
}

std::vector<planner::SampleBatch> EvaluationSet::worst_batches(int64_t batch_size) const {
  return planner::worst_batches(outlines_, batch_size);
}

}  // namespace vlmtrain::train
