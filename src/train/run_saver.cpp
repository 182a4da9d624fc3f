#include "train/run_saver.h"

#include <utility>

#include "train/unsafe_to_save.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

RunSaver::RunSaver(const Config& config, RunSetup& run, const RunRanks& ranks, OnCheckpoint on_checkpoint)
    : config_(config),
      run_(run),
      ranks_(ranks),
      on_checkpoint_(std::move(on_checkpoint)),
      saved_step_(run.resumed ? run.state.step : -1) {}

void RunSaver::save() {
  if (!is_rehearsal() && ranks_.writes()) write_checkpoint();
  saved_step_ = run_.state.step;
}

void RunSaver::write_checkpoint() {
  const auto writing = ranks_.while_writing();
  is_saving_ = true;
  run_.state.task_balance = run_.tasks->state();
  const auto folder = run_.checkpoints.save(run_.state, *run_.model, run_.training->optimizer, run_.ledger, *run_.base,
                                            saved_dtype(config_.output));
  is_saving_ = false;
  saved_step_ = run_.state.step;
  write_ledger();
  on_checkpoint_(folder);
}

void RunSaver::write_ledger() const {
  if (!ranks_.writes()) return;
  io::write_file(run_.folder / "ledger.json", io::json_text(run_.ledger_json(), 2) + "\n");
}

void RunSaver::save_before_the_end(const std::exception& error, const std::function<bool()>& numbers_are_lost) {
  if (is_rehearsal() || !ranks_.writes() || run_.state.step == 0 || is_saved()) return;
  const std::string reason = unsafe_to_save(error, {.is_saving = is_saving_,
                                                    .weights_are_whole = run_.training->optimizer.is_whole(),
                                                    .numbers_are_lost = !is_saving_ && numbers_are_lost()});
  if (!reason.empty()) {
    spdlog::warn("the steps since the last checkpoint are not saved: {}", reason);
    return;
  }
  try {
    write_checkpoint();
  } catch (const std::exception& another) {
    spdlog::warn("while step {} was saved: {}", run_.state.step, another.what());
  }
  if (is_saved()) {
    spdlog::warn("what was done up to step {} is saved ({}); the same command goes on from there", run_.state.step,
                 run_.checkpoints.newest()->string());
  } else {
    spdlog::warn("the steps since the last checkpoint could not be saved");
  }
}

}  // namespace vlmtrain::train
