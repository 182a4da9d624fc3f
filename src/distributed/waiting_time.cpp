#include "distributed/waiting_time.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace vlmtrain::distributed {

namespace {

c10::Event recorded_on(at::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // one that tells its time
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

void WaitingTime::begin(at::Device device) {
  if (device.is_cuda()) {
    on_device_.emplace_back(recorded_on(device), c10::Event(device.type()));
  } else {
    start_ = Clock::now();
  }
}

void WaitingTime::end(at::Device device) {
  if (device.is_cuda()) {
    on_device_.back().second = recorded_on(device);
  } else {
    seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }
}

double WaitingTime::seconds() {
  constexpr double kMilliseconds = 1e-3;
  while (!on_device_.empty() && on_device_.front().second.query()) {
    seconds_ += kMilliseconds * on_device_.front().first.elapsedTime(on_device_.front().second);
    on_device_.pop_front();
  }
  return seconds_;
}

bool WaitingTime::is_over() {
  seconds();
  return on_device_.empty();
}

}  // namespace vlmtrain::distributed
