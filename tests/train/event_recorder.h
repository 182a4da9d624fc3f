#pragma once

#include <vector>

#include "train/run/callbacks.h"

namespace vlmtrain::train {

/// Records the events of a run.
class EventRecorder final : public Callback {
 public:
  explicit EventRecorder(std::vector<report::Event>& events) : events_(events) {}
  void on_event(const report::Event& event) override { events_.push_back(event); }

 private:
  std::vector<report::Event>& events_;
};

}  // namespace vlmtrain::train
