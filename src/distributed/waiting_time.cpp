#include "distributed/waiting_time.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace vlmtrain::distributed {

namespace {

c10::Event record_event(at::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // one that tells its time
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

void WaitTimer::begin(at::Device device) {
  if (device.is_cuda()) {
    pending_waits_.emplace_back(record_event(device), c10::Event(device.type()));
  } else {
    start_ = Clock::now();
  }
}

void WaitTimer::end(at::Device device) {
  if (device.is_cuda()) {
    pending_waits_.back().second = record_event(device);
  } else {
    seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }
}

double WaitTimer::seconds() {
  constexpr double kMilliseconds = 1e-3;
  while (!pending_waits_.empty() && pending_waits_.front().second.query()) {
    seconds_ += kMilliseconds * pending_waits_.front().first.elapsedTime(pending_waits_.front().second);
    pending_waits_.pop_front();
  }
  return seconds_;
}

bool WaitTimer::is_idle() {
  seconds();
  return pending_waits_.empty();
}

}  // namespace vlmtrain::distributed
