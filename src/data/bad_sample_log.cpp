#include "data/bad_sample_log.h"

#include "vlmtrain/base/log.h"

namespace vlmtrain::data {
namespace {

constexpr int64_t kMaxLogged = 20;

}  // namespace

void BadSampleLog::warn(const std::string& message) {
  if (num_logged_ == kMaxLogged) {
    ++num_suppressed_;
    return;
  }
  ++num_logged_;
  spdlog::warn("dropped: {}", message);
}

void BadSampleLog::summarize(int64_t dropped, int64_t samples) {
  if (num_suppressed_ == 0) return;
  spdlog::warn("{} more samples are dropped, {} of {} in all; ledger.json names each with the reason", num_suppressed_,
               dropped, samples);
  num_suppressed_ = 0;
}

}  // namespace vlmtrain::data
