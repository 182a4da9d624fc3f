#include "vlmtrain/distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "distributed/backends.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/allocation_tracking.h"

namespace vlmtrain::distributed {

namespace {

/// A message of fixed size with the size of a string and its first characters. Most strings fit
/// into one message, which saves a second collective.
class ShortMessage {
 public:
  explicit ShortMessage(const std::string& text) {
    size_ = std::ssize(text);
    std::memcpy(chars_.data(), text.data(), std::min(text.size(), chars_.size()));
  }
  /// Extracts a rank's message from the messages of all ranks: uint8 [ranks · kMessageBytes].
  ShortMessage(const at::Tensor& all, size_t rank) {
    const auto* const message = static_cast<const char*>(all.const_data_ptr()) + rank * kMessageBytes;
    std::memcpy(&size_, message, sizeof(size_));
    std::memcpy(chars_.data(), message + sizeof(size_), chars_.size());
  }

  /// Returns the message as uint8 [kMessageBytes].
  at::Tensor tensor() const {
    at::Tensor bytes = at::empty({static_cast<int64_t>(kMessageBytes)}, at::kByte);
    auto* const first = static_cast<char*>(bytes.mutable_data_ptr());
    std::memcpy(first, &size_, sizeof(size_));
    std::memcpy(first + sizeof(size_), chars_.data(), chars_.size());
    return bytes;
  }
  /// Returns the size of the string, which may be longer than the message.
  int64_t size() const { return size_; }
  bool contains_full_text() const { return size_ <= std::ssize(chars_); }
  /// REQUIRES: contains_full_text().
  std::string text() const { return {chars_.data(), static_cast<size_t>(size_)}; }

 private:
  static constexpr size_t kMessageBytes = 128;  // chosen without measurement
  int64_t size_ = 0;
  std::array<char, kMessageBytes - sizeof(int64_t)> chars_{};
};

void record_traffic(CollectiveTraffic& traffic, const at::Tensor& tensor) {
  traffic.bytes += static_cast<int64_t>(tensor.nbytes());
  ++traffic.num_calls;
}

/// Records an event with a timestamp on the device's current stream.
c10::Event record_event(at::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // BACKEND_DEFAULT: an event with a timestamp
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

/// A timer of the waits for other ranks, on this rank's thread or on its device's current stream.
class WaitTimer {
 public:
  /// Marks the beginning and the end of a wait on the device's current stream or on this thread.
  void begin_wait(at::Device device);
  void end_wait(at::Device device);

  /// Returns the duration of completed waits. Does not block.
  double sum_completed_wait_seconds();
  /// Returns whether all waits are complete. Does not block.
  bool is_idle();

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point wait_start_;
  double completed_wait_seconds_ = 0;
  std::deque<std::pair<c10::Event, c10::Event>> pending_waits_;  // not known to be complete, in order
};

void WaitTimer::begin_wait(at::Device device) {
  if (device.is_cuda()) {
    pending_waits_.emplace_back(record_event(device), c10::Event(device.type()));
  } else {
    wait_start_ = Clock::now();
  }
}

void WaitTimer::end_wait(at::Device device) {
  if (device.is_cuda()) {
    pending_waits_.back().second = record_event(device);
  } else {
    completed_wait_seconds_ += std::chrono::duration<double>(Clock::now() - wait_start_).count();
  }
}

double WaitTimer::sum_completed_wait_seconds() {
  constexpr double kSecondsPerMillisecond = 1e-3;
  while (!pending_waits_.empty() && pending_waits_.front().second.query()) {
    completed_wait_seconds_ +=
        kSecondsPerMillisecond * pending_waits_.front().first.elapsedTime(pending_waits_.front().second);
    pending_waits_.pop_front();
  }
  return completed_wait_seconds_;
}

bool WaitTimer::is_idle() {
  sum_completed_wait_seconds();
  return pending_waits_.empty();
}

class Collectives::Impl {
 public:
  explicit Impl(const Backends& world) : world_(world), group_(world) {}

  /// Closes the connections of idle groups, so that other ranks notice that this rank ends. Other
  /// groups are leaked: their destructors would wait for outstanding calls, which a lost rank never
  /// completes.
  ~Impl() {
    const bool is_idle = !has_failed_collective_ && pending_reductions_.empty() && pending_all_gathers_.empty();
    for (Backends* const backends : {&replicas_, &group_, &world_}) {
      if (is_idle) {
        if (backends->device && (backends == &world_ || backends->device != world_.device))
          backends->device->shutdown();
      } else {
        static_cast<void>(backends->host.release());
        static_cast<void>(backends->device.release());
      }
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const Backends& world() const { return world_; }
  const Backends& group() const { return group_; }
  const Backends& replicas() const { return replicas_; }

  void set_shard_groups(Backends group, Backends replicas) {
    group_ = std::move(group);
    replicas_ = std::move(replicas);
  }

  void set_device_backends(Backends world, Backends group, Backends replicas) {
    world_.device = std::move(world.device);
    group_.device = group.device ? std::move(group.device) : world_.device;
    replicas_.device = std::move(replicas.device);
  }

  void all_reduce_async(const Backends& backends, at::Tensor tensor) {
    device_ = tensor.device();
    c10d::Backend& backend = backends.select_backend(tensor);
    std::vector<at::Tensor> tensors{std::move(tensor)};
    pending_reductions_.push_back(backend.allreduce(tensors));
  }

  void reduce_scatter_async(at::Tensor tensor) {
    device_ = tensor.device();
    at::Tensor output = get_local_shard(tensor);
    pending_reductions_.push_back(group_.select_backend(tensor)._reduce_scatter_base(output, tensor));
  }

  int64_t all_gather_async(at::Tensor output, at::Tensor input) {
    device_ = output.device();
    pending_all_gathers_.emplace(next_handle_, group_.select_backend(output)._allgather_base(output, input));
    return next_handle_++;
  }

  void wait_for_all_gather(int64_t handle) {
    const auto work = pending_all_gathers_.extract(handle);
    VLMTRAIN_CHECK(!work.empty(), "no all_gather is in progress");
    wait_timer_.begin_wait(device_);
    work.mapped()->wait();
    wait_timer_.end_wait(device_);
  }

  void wait_for_reductions() {
    if (pending_reductions_.empty()) return;
    wait_timer_.begin_wait(device_);
    for (const auto& reduction : std::exchange(pending_reductions_, {})) reduction->wait();
    wait_timer_.end_wait(device_);
  }

  at::Tensor get_local_shard(const at::Tensor& tensor) const {
    const int64_t shard_size = tensor.numel() / group_.host->getSize();
    return tensor.narrow(0, group_.host->getRank() * shard_size, shard_size);
  }

  /// Returns the one-dimensional CPU tensors of all ranks, in rank order. Blocks.
  at::Tensor all_gather(at::Tensor input) {
    at::Tensor output = at::empty({world_.host->getSize() * input.numel()}, input.options());
    world_.host->_allgather_base(output, input)->wait();
    return output;
  }

  double compute_wait_seconds() { return wait_timer_.sum_completed_wait_seconds(); }
  bool are_waits_complete() { return wait_timer_.is_idle(); }
  bool has_device_backend() const { return world_.device.defined(); }
  void mark_collective_failed() { has_failed_collective_ = true; }

 private:
  Backends world_, group_, replicas_;  // without shard groups, group_ is world_ and replicas_ is empty
  std::vector<c10::intrusive_ptr<c10d::Work>> pending_reductions_;
  std::map<int64_t, c10::intrusive_ptr<c10d::Work>> pending_all_gathers_;  // by handle
  int64_t next_handle_ = 0;
  at::Device device_ = at::kCPU;  // of the outstanding calls
  WaitTimer wait_timer_;
  bool has_failed_collective_ = false;
};

Collectives::Collectives(const Backends& backends, ErrorHandler on_error)
    : impl_(std::make_unique<Impl>(backends)), error_handler_(std::move(on_error)) {}

Collectives::~Collectives() = default;

int64_t Collectives::world_size() const {
  return impl_->world().host->getSize();
}

int64_t Collectives::shard_group_size() const {
  return impl_->group().host->getSize();
}

void Collectives::set_shard_groups(Backends group, Backends replicas) {
  impl_->set_shard_groups(std::move(group), std::move(replicas));
}

void Collectives::set_device_backends(Backends world, Backends group, Backends replicas) {
  impl_->set_device_backends(std::move(world), std::move(group), std::move(replicas));
}

template <class Operation>
void Collectives::run_with_error_handler(const Operation& operation) {
  // Gloo allocates copies of the tensors. That must not fail on this rank alone.
  const memory::ScopedDisableTracking disable_tracking;
  try {
    operation();
  } catch (const std::exception& error) {
    impl_->mark_collective_failed();
    if (error_handler_) error_handler_(error);
    throw;
  }
}

void Collectives::check_transferable(const at::Tensor& tensor) const {
  VLMTRAIN_CHECK(tensor.is_contiguous(), "collectives require contiguous tensors");
  VLMTRAIN_CHECK(tensor.is_cpu() || impl_->has_device_backend(), "the ranks' devices are not connected");
}

void Collectives::all_reduce_async(const at::Tensor& tensor) {
  check_transferable(tensor);
  record_traffic(all_reduce_traffic_, tensor);
  run_with_error_handler([&] { impl_->all_reduce_async(impl_->world(), tensor); });
}

void Collectives::all_reduce_group_async(const at::Tensor& tensor) {
  check_transferable(tensor);
  record_traffic(all_reduce_traffic_, tensor);
  run_with_error_handler([&] { impl_->all_reduce_async(impl_->group(), tensor); });
}

void Collectives::all_reduce_replicas_async(const at::Tensor& tensor) {
  if (!impl_->replicas().host) return;
  check_transferable(tensor);
  record_traffic(all_reduce_traffic_, tensor);
  run_with_error_handler([&] { impl_->all_reduce_async(impl_->replicas(), tensor); });
}

void Collectives::check_shardable(const at::Tensor& tensor) const {
  check_transferable(tensor);
  VLMTRAIN_CHECK(tensor.dim() == 1 && tensor.numel() % shard_group_size() == 0, "cannot shard {} values over {} ranks",
                 tensor.numel(), shard_group_size());
}

void Collectives::reduce_scatter_async(const at::Tensor& tensor) {
  check_shardable(tensor);
  record_traffic(reduce_scatter_traffic_, tensor);
  run_with_error_handler([&] { impl_->reduce_scatter_async(tensor); });
}

int64_t Collectives::all_gather_async(const at::Tensor& tensor) {
  check_shardable(tensor);
  return all_gather_async(tensor, impl_->get_local_shard(tensor));
}

int64_t Collectives::all_gather_async(const at::Tensor& output, const at::Tensor& input) {
  check_shardable(output);
  VLMTRAIN_CHECK(input.is_contiguous() && input.numel() * shard_group_size() == output.numel(),
                 "all_gather of {} values per rank does not match {} output values", input.numel(), output.numel());
  record_traffic(all_gather_traffic_, output);
  int64_t handle = 0;
  run_with_error_handler([&] { handle = impl_->all_gather_async(output, input); });
  return handle;
}

void Collectives::wait_for_all_gather(int64_t handle) {
  run_with_error_handler([&] { impl_->wait_for_all_gather(handle); });
}

void Collectives::wait_for_reductions() {
  run_with_error_handler([&] { impl_->wait_for_reductions(); });
}

bool Collectives::poll_until_complete(std::chrono::milliseconds timeout) {
  constexpr auto kPollInterval = std::chrono::milliseconds(5);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!impl_->are_waits_complete()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
  return true;
}

double Collectives::compute_wait_seconds() {
  return impl_->compute_wait_seconds();
}

std::vector<std::string> Collectives::all_gather_strings(const std::string& text) {
  std::vector<std::string> texts(static_cast<size_t>(world_size()));
  run_with_error_handler([&] {
    const at::Tensor messages = impl_->all_gather(ShortMessage(text).tensor());
    bool are_all_texts_complete = true;
    int64_t max_size = 0;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      const ShortMessage message(messages, rank);
      are_all_texts_complete = are_all_texts_complete && message.contains_full_text();
      max_size = std::max(max_size, message.size());
      if (message.contains_full_text()) texts[rank] = message.text();
    }
    if (are_all_texts_complete) return;
    // Some string does not fit into its message: gather all strings, padded to the longest.
    at::Tensor padded_text = at::zeros({max_size}, at::kByte);
    std::memcpy(padded_text.mutable_data_ptr(), text.data(), text.size());
    const at::Tensor gathered_bytes = impl_->all_gather(padded_text);
    const auto* const first = static_cast<const char*>(gathered_bytes.const_data_ptr());
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      texts[rank].assign(first + static_cast<int64_t>(rank) * max_size,
                         static_cast<size_t>(ShortMessage(messages, rank).size()));
    }
  });
  return texts;
}

std::unique_ptr<Collectives> make_fake_collectives(int64_t world_size, int64_t rank, int64_t group) {
  const auto make_backends = [](int64_t group_rank, int64_t size) {
    const auto backend = c10::make_intrusive<FakeProcessGroup>(static_cast<int>(group_rank), static_cast<int>(size));
    return Collectives::Backends{.host = backend, .device = backend};
  };
  auto collectives = std::make_unique<Collectives>(make_backends(rank, world_size));
  if (group > 0 && group < world_size) {
    collectives->set_shard_groups(make_backends(rank % group, group), make_backends(rank / group, world_size / group));
  }
  return collectives;
}

}  // namespace vlmtrain::distributed
