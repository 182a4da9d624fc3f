// The only file that includes ProcessGroupGloo.hpp. gloo_headers/ declares the parts of Gloo that
// this header uses.
#define USE_C10D_GLOO
#define USE_DISTRIBUTED

#include "vlmtrain/distributed/ranks.h"

#include <unistd.h>

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <set>
#include <thread>

#include "distributed/backends.h"
#include "distributed/rank_monitor.h"
#include "distributed/store.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::distributed {

namespace {

/// Timeout of Gloo's calls, practically unlimited. A step or checkpoint may take any time, and
/// RankMonitor detects lost ranks.
constexpr auto kNoTimeout = std::chrono::hours(24);

std::string format_process_name() {
  return fmt::format("process {} on {}", getpid(), get_host_name());
}

std::string make_rendezvous_key(int64_t rank) {
  return fmt::format("here/{}", rank);
}

/// The rendezvous of all ranks through rank 0's store. Rank 0 decides whether it has failed.
class Rendezvous {
 public:
  Rendezvous(SharedStore& store, const LaunchInfo& launch_info, std::chrono::milliseconds timeout)
      : store_(store), launch_info_(launch_info), timeout_(timeout) {
    for (int64_t rank = 0; rank < launch_info.world_size; ++rank) rendezvous_keys_.push_back(make_rendezvous_key(rank));
  }

  /// Returns the names of all ranks' processes once they are connected.
  std::vector<std::string> wait_for_process_names() {
    try {
      store_.set(make_rendezvous_key(launch_info_.rank), format_process_name());
      const auto deadline = std::chrono::steady_clock::now() + timeout_;
      while (!store_.has_keys(rendezvous_keys_)) {
        if (launch_info_.rank == 0 && std::chrono::steady_clock::now() > deadline)
          store_.set(kMissingRanksKey, find_missing_ranks());
        if (store_.has_keys({kMissingRanksKey})) throw_missing_ranks(store_.get({kMissingRanksKey}).front());
        std::this_thread::sleep_for(kPollInterval);
      }
      return store_.get(rendezvous_keys_);
    } catch (const c10::Error&) {
      throw run_error("rank 0 at {}:{} disconnected before all {} ranks had connected; see its own messages",
                      launch_info_.master_address, launch_info_.master_port, launch_info_.world_size);
    }
  }

 private:
  static constexpr const char* kMissingRanksKey = "missing";
  static constexpr auto kPollInterval = std::chrono::milliseconds(20);

  std::string find_missing_ranks() {
    std::string ranks;
    for (int64_t rank = 0; rank < launch_info_.world_size; ++rank) {
      if (!store_.has_keys({make_rendezvous_key(rank)})) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
    }
    return ranks;
  }

  [[noreturn]] void throw_missing_ranks(const std::string& missing) const {
    // Rank 0 hosts the store, so it waits until the other ranks have polled the message.
    if (launch_info_.rank == 0) std::this_thread::sleep_for(20 * kPollInterval);
    throw run_error(
        "{}: these of {} ranks did not connect to {}:{} within {} s: {}; check that they were started and can reach "
        "it, or increase the limit",
        keys::distributed::kRendezvousSeconds, launch_info_.world_size, launch_info_.master_address,
        launch_info_.master_port, std::chrono::duration<double>(timeout_).count(), missing);
  }

  SharedStore& store_;
  const LaunchInfo& launch_info_;
  const std::chrono::milliseconds timeout_;
  std::vector<std::string> rendezvous_keys_;
};

/// Turns off c10d's warnings and its flight recorder. c10d logs many lines about a lost connection,
/// which add nothing to RankFailure. The flight recorder costs time in each call, and is not
/// thread-safe with several ranks in one process, as in tests.
void silence_c10d_logs() {
  constexpr int kErrorLogLevel = 2;
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = kErrorLogLevel;
  setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0);
}

}  // namespace

std::string RankFailure::format_message() const {
  return fmt::format("rank {}: {}", rank, reason);
}

class DistributedContext::Impl {
 public:
  Impl(const LaunchInfo& launch_info, const DistributedContextOptions& options)
      : launch_info_(launch_info),
        store_(launch_info, launch_info.rank == 0, options.rendezvous_timeout),
        rank_monitor_(launch_info, options,
                      Rendezvous(store_, launch_info, options.rendezvous_timeout).wait_for_process_names()),
        collectives_({.host = make_gloo_backend(make_world_membership()), .device = {}},
                     [this](const std::exception& error) { rethrow_with_reason(error); }) {}

  RankMonitor& rank_monitor() { return rank_monitor_; }
  Collectives& collectives() { return collectives_; }

  void connect_device(at::Device device) {
    const auto make_device_backends = [&](const GroupMembership& membership) {
      return Collectives::Backends{.host = {}, .device = make_device_backend(device, membership)};
    };
    if (shard_group_size_ == launch_info_.world_size) {
      collectives_.set_device_backends(make_device_backends(make_world_membership()), {}, {});
    } else {
      collectives_.set_device_backends(make_device_backends(make_world_membership()),
                                       make_device_backends(make_group_membership()),
                                       make_device_backends(make_replica_membership()));
    }
  }

  void set_shard_group_size(int64_t count) {
    VLMTRAIN_CHECK(count > 0 && launch_info_.world_size % count == 0, "a group size of {} does not divide {} ranks",
                   count, launch_info_.world_size);
    shard_group_size_ = count;
    if (count == launch_info_.world_size) return;
    collectives_.set_shard_groups({.host = make_gloo_backend(make_group_membership()), .device = {}},
                                  {.host = make_gloo_backend(make_replica_membership()), .device = {}});
  }

 private:
  /// A set of ranks, with this rank's index in it.
  struct GroupMembership {
    std::string name;
    int64_t rank, count;
  };

  GroupMembership make_world_membership() const {
    return {.name = "all", .rank = launch_info_.rank, .count = launch_info_.world_size};
  }
  GroupMembership make_group_membership() const {
    const int64_t group_index = launch_info_.rank / shard_group_size_;
    return {.name = fmt::format("group{}", group_index),
            .rank = launch_info_.rank % shard_group_size_,
            .count = shard_group_size_};
  }
  GroupMembership make_replica_membership() const {
    const int64_t shard_index = launch_info_.rank % shard_group_size_;
    return {.name = fmt::format("copies{}", shard_index),
            .rank = launch_info_.rank / shard_group_size_,
            .count = launch_info_.world_size / shard_group_size_};
  }

  c10::intrusive_ptr<c10d::Store> make_prefix_store(const std::string& name) {
    return c10::make_intrusive<c10d::PrefixStore>(
        name, c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store_.get_c10d_store()));
  }

  c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const GroupMembership& membership) {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(
        make_prefix_store("gloo/" + membership.name), static_cast<int>(membership.rank),
        static_cast<int>(membership.count), c10d::ProcessGroupGloo::Options::create_default(kNoTimeout));
  }

  c10::intrusive_ptr<c10d::Backend> make_device_backend(at::Device device, const GroupMembership& membership) {
    VLMTRAIN_CHECK(!device.is_cpu(), "expected a GPU; the CPU backend is connected at startup");
    const auto rank = static_cast<int>(membership.rank), count = static_cast<int>(membership.count);
    if (vgpu::find_virtual_gpu_interface() != nullptr) return c10::make_intrusive<FakeProcessGroup>(rank, count);
    return make_nccl_backend(make_prefix_store("nccl/" + membership.name), rank, count, device);
  }

  /// Throws the failure of another rank, which is the reason why a call failed.
  [[noreturn]] void rethrow_with_reason(const std::exception& error) {
    if (const auto failure = rank_monitor_.wait_for_failure())
      throw UserError(failure->code, failure->format_message());
    throw run_error(
        "rank {}: the connection to another rank broke: {}; check the logs of the other ranks, then run the same "
        "command to resume",
        launch_info_.rank, error.what());
  }

  const LaunchInfo& launch_info_;
  int64_t shard_group_size_ = launch_info_.world_size;
  SharedStore store_;
  RankMonitor rank_monitor_;
  Collectives collectives_;
};

DistributedContext::DistributedContext(const LaunchInfo& launch_info, const DistributedContextOptions& options)
    : launch_info_(launch_info) {
  static const bool is_quiet = (silence_c10d_logs(), true);
  static_cast<void>(is_quiet);
  impl_ = std::make_unique<Impl>(launch_info_, options);
}

DistributedContext::~DistributedContext() = default;

Collectives& DistributedContext::collectives() {
  return impl_->collectives();
}

const Collectives& DistributedContext::collectives() const {
  return impl_->collectives();
}

void DistributedContext::set_shard_group_size(int64_t count) {
  impl_->set_shard_group_size(count);
}

void DistributedContext::connect_device(at::Device device) {
  impl_->connect_device(device);
}

bool DistributedContext::has_lost_rank0() const {
  return impl_->rank_monitor().has_lost_rank0();
}

void DistributedContext::report_failure(ExitCode code, const std::string& reason) {
  impl_->rank_monitor().report_failure({.rank = launch_info_.rank, .code = code, .reason = reason});
}

namespace {

template <class Value>
std::string serialize_values(const std::vector<Value>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)};
}

template <class Value>
std::vector<Value> deserialize_values(const std::string& bytes) {
  std::vector<Value> values(bytes.size() / sizeof(Value));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

engine::StepStatus RankConsensus::all_reduce_max(engine::StepStatus status) const {
  for (const auto& text : collectives_.all_gather_strings(std::string(1, static_cast<char>(status)))) {
    status = std::max(status, static_cast<engine::StepStatus>(text.at(0)));
  }
  return status;
}

bool RankConsensus::any_rank(bool value) const {
  const auto rank_flags = collectives_.all_gather_strings(value ? "y" : "");
  return std::ranges::find(rank_flags, "y") != rank_flags.end();
}

/// Sums in rank order, so that all ranks have bit-identical sums.
std::vector<double> RankConsensus::sum_over_ranks(std::vector<double> values) const {
  std::vector<double> sums(values.size());
  for (const auto& text : collectives_.all_gather_strings(serialize_values(values))) {
    const auto rank_values = deserialize_values<double>(text);
    VLMTRAIN_CHECK(rank_values.size() == sums.size(), "a rank has {} values, expected {}", rank_values.size(),
                   sums.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += rank_values[i];
  }
  return sums;
}

void RankConsensus::all_reduce_sum_async(const at::Tensor& tensor) const {
  collectives_.all_reduce_async(tensor);
}

std::vector<int64_t> RankConsensus::union_over_ranks(std::vector<int64_t> values) const {
  const std::string bytes = serialize_values(values);
  std::set<int64_t> merged_values(values.begin(), values.end());
  for (const auto& text : collectives_.all_gather_strings(bytes)) {
    if (text == bytes) continue;  // the common case
    const auto rank_values = deserialize_values<int64_t>(text);
    merged_values.insert(rank_values.begin(), rank_values.end());
  }
  return {merged_values.begin(), merged_values.end()};
}

}  // namespace vlmtrain::distributed
