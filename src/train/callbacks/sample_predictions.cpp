#include "train/callbacks/sample_predictions.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "vlmtrain/base/rng.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kMostNewTokens = 64;

}  // namespace

SamplePredictions::SamplePredictions(std::vector<io::Record> records, std::filesystem::path image_root,
                                     const models::VisionLanguageModel& model, const models::Processor& processor,
                                     at::Device device, CallbackList& callbacks)
    : records_(std::move(records)),
      image_root_(std::move(image_root)),
      model_(model),
      processor_(processor),
      callbacks_(callbacks) {
  settings_.device = device;
  settings_.batch_size = 1;  // as little memory as can be
  settings_.max_new_tokens = kMostNewTokens;
  settings_.on_bad_sample = data::BadSamplePolicy::kSkip;
}

void SamplePredictions::on_checkpoint(int64_t step, const std::filesystem::path& /*folder*/) {
  size_t next = 0;
  const auto on_answer = [&](const Answer& answer) {
    while (records_[next].id != answer.id) ++next;
    const io::Record& record = records_[next++];
    callbacks_.prediction({.step = step,
                           .id = answer.id,
                           .task = answer.task,
                           .question = answer.question,
                           .expected = answer.expected,
                           .given = answer.given,
                           .images = thumbnails(record)});
  };
  try {
    evaluate(model_, processor_, records_, settings_, on_answer);
  } catch (const std::exception& error) {
    const auto shortage = memory::shortage_in(error);
    if (!shortage) throw;
    callbacks_.event({.step = step,
                      .kind = report::EventKind::kAnomaly,
                      .message = fmt::format("step {}: no memory for the sample answers of this checkpoint ({})", step,
                                             shortage->reason)});
  }
}

const std::vector<std::string>& SamplePredictions::thumbnails(const io::Record& record) {
  const auto [entry, added] = thumbnails_.try_emplace(record.id);
  if (!added) return entry->second;
  for (const auto& image : record.images) {
    try {
      entry->second.push_back(report::thumbnail_data_uri(image_root_ / image));
    } catch (const std::exception&) {
      continue;  // the report then shows the words alone
    }
  }
  return entry->second;
}

std::vector<io::Record> spread(const std::vector<io::Record>& records, int64_t count) {
  std::vector<io::Record> chosen;
  const int64_t wanted = std::min(count, std::ssize(records));
  RandomStream random(stream_seed(0, "sample predictions"));
  for (int64_t i = 0; i < wanted; ++i) {
    const int64_t first = i * std::ssize(records) / wanted;
    const int64_t next = (i + 1) * std::ssize(records) / wanted;
    const auto& record = records[static_cast<size_t>(first) + random.below(static_cast<uint64_t>(next - first))];
    if (record.problem.empty()) chosen.push_back(record);
  }
  return chosen;
}

}  // namespace vlmtrain::train
