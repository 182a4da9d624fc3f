#include "train/callbacks/epoch_rows.h"

#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/report/run_lines.h"

namespace vlmtrain::train {

namespace {

constexpr int64_t kNoStep = -1;

}  // namespace

EpochRows::EpochRows(const std::filesystem::path& run_folder) : run_folder_(run_folder) {
  restart();
}

/// Whatever the file holds.
void EpochRows::restart() {
  const auto path = run_folder_ / "epochs.jsonl";
  io::write_file(path, "");
  rows_.emplace(path, kNoStep);
}

void EpochRows::on_past_step(const nlohmann::json& line) {
  for (const auto& row : epochs_.add(line)) rows_->append(io::to_json_string(row));
}

void EpochRows::on_step(const StepReport& step) {
  // As the file has it, so that a row is the same whenever it is made.
  on_past_step(nlohmann::json::parse(step.metrics.to_json_line()));
}

void EpochRows::on_late_evaluation(int64_t /*step*/, const report::EvaluationMetrics& /*evaluation*/) {
  epochs_ = {};
  restart();
  report::read_json_lines(run_folder_ / "metrics.jsonl", [this](const auto& line) { on_past_step(line); });
}

void EpochRows::on_end(bool /*well*/) {
  if (const auto row = epochs_.current_epoch()) rows_->append(io::to_json_string(*row));
}

}  // namespace vlmtrain::train
