#pragma once

#include <vector>

#include "train/run/callbacks.h"

namespace vlmtrain::train {

/// Records the events of a run.
class EventRecorder final : public TrainerCallback {
 public:
  explicit EventRecorder(std::vector<report::RunEvent>& events) : events_(events) {}
  void on_event(const report::RunEvent& event) override { events_.push_back(event); }

 private:
  std::vector<report::RunEvent>& events_;
};

}  // namespace vlmtrain::train
