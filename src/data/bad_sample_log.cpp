#include "data/bad_sample_log.h"

#include "vlmtrain/base/log.h"

namespace vlmtrain::data {
namespace {

constexpr int64_t kShown = 20;

}  // namespace

void BadSampleLog::warn(const std::string& message) {
  if (shown_ == kShown) {
    ++silent_;
    return;
  }
  ++shown_;
  spdlog::warn("dropped: {}", message);
}

void BadSampleLog::summarize(int64_t dropped, int64_t samples) {
  if (silent_ == 0) return;
  spdlog::warn("{} more samples are dropped, {} of {} in all; ledger.json names each with the reason", silent_, dropped,
               samples);
  silent_ = 0;
}

}  // namespace vlmtrain::data
