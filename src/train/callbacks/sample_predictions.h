#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "train/callbacks/callback.h"
#include "train/callbacks/callback_list.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/report/prediction.h"
#include "vlmtrain/train/evaluate.h"

namespace vlmtrain::train {

/// At each checkpoint, the model's answers to a few records.
class SamplePredictions final : public Callback {
 public:
  /// `image_root`: where the records' pictures are.
  SamplePredictions(std::vector<io::Record> records, std::filesystem::path image_root,
                    const models::VisionLanguageModel& model, const models::Processor& processor, at::Device device,
                    CallbackList& callbacks);

  void on_checkpoint(int64_t step, const std::filesystem::path& folder) override;

 private:
  const std::vector<std::string>& thumbnails(const io::Record& record);

  std::vector<io::Record> records_;
  std::filesystem::path image_root_;
  const models::VisionLanguageModel& model_;
  const models::Processor& processor_;
  EvaluationSettings settings_;
  CallbackList& callbacks_;
  std::unordered_map<std::string, std::vector<std::string>> thumbnails_;  // by record
};

/// `count` records spread over a data set, one drawn from each of as many stretches, the same in every run: kinds of
/// questions often take turns, and records at equal distances would be of one kind. Those with a problem are left out.
std::vector<io::Record> spread(const std::vector<io::Record>& records, int64_t count);

}  // namespace vlmtrain::train
