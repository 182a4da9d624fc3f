#include "train/callbacks/progress_bar.h"

#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

void ProgressBar::on_event(const report::Event& event) {
  progress_.clear();
  switch (event.kind) {
    case report::EventKind::kCheckpoint:
      break;  // seen by the folder, too often for the log
    case report::EventKind::kFailed:
      break;  // the command's last line says it
    case report::EventKind::kResumed:
    case report::EventKind::kChanged:
    case report::EventKind::kForeseenSplit:
    case report::EventKind::kCacheEmptied:
      spdlog::info("{}", event.message);
      break;
    default:
      spdlog::warn("{}", event.message);
  }
}

}  // namespace vlmtrain::train
